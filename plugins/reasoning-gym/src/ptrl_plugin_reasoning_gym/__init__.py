"""The data sets of reasoning-gym as environments, with their own scorers as outcome rewards.

Nothing here imports reasoning-gym until a config names one of its components.
"""
