"""Examples: configs and scripts as a user of ecorl would write them."""
