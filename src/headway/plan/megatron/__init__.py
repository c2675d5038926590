"""The memory of a Megatron trainer (Megatron-LM, slime, Miles, verl): one rank of each pipeline stage."""
