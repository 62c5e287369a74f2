"""What went wrong on devices: configs that broke them."""
