"""Independent simulations that tests hold the program against."""
