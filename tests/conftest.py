"""Hypothesis tries fewer examples than by its own default; `--hypothesis-profile=default` tries as many as that."""

from hypothesis import settings

settings.register_profile("quick", max_examples=40)
settings.load_profile("quick")
