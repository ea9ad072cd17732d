"""`python -m wengert`: what is installed here, and what it computes on."""

from wengert import show_config

show_config()
