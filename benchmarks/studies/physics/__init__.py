"""The physics benchmark: a card's limits, the break-even map, the paper's figures beside them."""
