"""AdamW that decelerates in noisy gears (`adamw`), and how noisy a gear is (`noise`)."""
