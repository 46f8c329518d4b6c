"""The optimizer: AdamW, over all weights at once on a GPU.

What comes in are gradients, already summed and clipped, and the weights with two moments of each.
Weights that decay are shrunk, then moments and weights are updated. What goes out are their new
values, the same in every bit on each replica.
"""

import keras
import tensorflow as tf

from myxtts.base.portable_ops import assign_elementwise
from myxtts.base.tf_internals import OptimizerOfSums

UNDECAYED = ["bias", "gamma", "beta", "embeddings"]  # without the names of their layers


class AdamW(OptimizerOfSums):
    """AdamW (Loshchilov & Hutter 2019), with the bits of Keras' own on a CPU.

    Keras' own computes the same for each weight apart, by 38 operations. They were two thirds of
    the kernels in the step of a tiny voice.
    """

    def update(self, rate, decay, weights, momenta, velocities, gradients):
        """Update lists of variables on one replica by a learning rate and a weight decay."""
        count = tf.cast(self.iterations.value + 1, tf.float32)
        # Equal for all weights: corrects moments that began at 0 (Kingma & Ba 2015, section 2).
        corrected_rate = rate * tf.sqrt(1 - tf.pow(self.beta_2, count))
        corrected_rate /= 1 - tf.pow(self.beta_1, count)

        def updated(weight, momentum, velocity, gradient):
            weight -= weight * decay * rate
            momentum += (gradient - momentum) * (1 - self.beta_1)
            velocity += (tf.square(gradient) - velocity) * (1 - self.beta_2)
            weight -= momentum * corrected_rate / (tf.sqrt(velocity) + self.epsilon)
            return weight, momentum, velocity

        assign_elementwise(updated, (weights, momenta, velocities), (gradients,))


def make_optimizer(weight_decay: float, precision: str) -> keras.optimizers.Optimizer:
    """Return AdamW for summed gradients; scaled in mixed_float16."""
    # Names are fixed because checkpoints use them: Keras' default names count the optimizers of a
    # process. Each step sets the learning rate. With a beta_2 of 0.99 the second moment follows
    # within 100 steps, which short runs need. Adam's default of 0.999 takes 1,000.
    optimizer = AdamW(1e-3, weight_decay=weight_decay, beta_1=0.9, beta_2=0.99, name="adamw")
    optimizer.exclude_from_weight_decay(var_names=UNDECAYED)
    if precision == "mixed_float16":
        return keras.optimizers.LossScaleOptimizer(optimizer, name="scaled")
    return optimizer


def is_scaled(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether the optimizer scales the loss, as mixed_float16 needs it."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def unscaled(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer inside a loss scale, or the optimizer itself."""
    return optimizer.inner_optimizer if is_scaled(optimizer) else optimizer
