"""Load on a model, a pipeline or a service: profiles, generator, targets and results."""
