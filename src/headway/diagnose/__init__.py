"""What ended a run and why: text to evidence, evidence to findings. Nothing in a log is executed or fetched."""
