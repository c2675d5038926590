"""Why a process ended: one rule a file."""
