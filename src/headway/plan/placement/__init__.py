"""A trainer and an engine in processes of their own: on which devices and nodes each is, what is alive together."""
