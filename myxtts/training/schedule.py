"""What changes with the step: learning rate and decay of the moving average. Plain numbers."""

from math import cos, pi


def learning_rate(step: int, total_steps: int, peak: float, warmup_steps: int, final_share: float) -> float:
    """Linear warm-up to the peak, then a cosine to `final_share` of it (Loshchilov & Hutter 2017).

    Args:
        step: steps done so far; any number from 0 on, also beyond `total_steps`.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    passed = min((step - warmup_steps) / max(total_steps - 1 - warmup_steps, 1), 1.0)
    return peak * (final_share + (1.0 - final_share) * 0.5 * (1.0 + cos(pi * passed)))


def ema_decay(step: int, decay: float) -> float:
    """Decay of the moving average, low at first so that the initial weights are soon forgotten."""
    return min(decay, (1.0 + step) / (10.0 + step))


def total_steps(max_steps: int, by_epochs: int) -> int:
    """Length of the run: the nearer of the two bounds, of which 0 is none."""
    return min(bound for bound in (max_steps, by_epochs) if bound)
