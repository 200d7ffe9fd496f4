"""Load on a model, a pipeline or a service: profiles, the generator, targets, and what they measure."""
