#!/bin/bash
MODEL=hub/Dense-14B
EXTRA_ARGS=( --gradient-checkpointing --eval-interval 10 )
SEQ=4096 source "$(dirname "$0")/miles-common.sh"
