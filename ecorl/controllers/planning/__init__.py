"""Plans and simulations of a training: tables of its power, the grid ahead, and what is saved."""
