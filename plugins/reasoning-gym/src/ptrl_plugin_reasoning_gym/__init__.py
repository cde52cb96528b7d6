"""The data sets of reasoning-gym as environments, with their own scorers as outcome rewards."""
