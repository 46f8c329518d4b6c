"""The new names of renamed settings, flags, sections and values, and what replaces removed flags,
for messages about the old ones.
"""

RENAMED = {
    "condition_dropout": "cfg_dropout",
    "ema": "ema_decay",
    "exchange": "sync_dir",
    "final_learning_rate": "final_lr_ratio",
    "merge_every": "sync_every",
    "merge_optimizer": "sync_optimizer",
    "parts": "shards",
    "recogniser": "asr",
    "recompute_activations": "gradient_checkpointing",
    "round_timeout": "sync_timeout",
    "rounds": "num_syncs",
    "shared_steps": "warmstart_steps",
    "synthesis_steps": "ode_steps",
    "time_mask_share": "time_mask_fraction",
    "validation_share": "validation_fraction",
    "voice_augmentation": "vtlp",
}
"""New names of settings and flags, with _ for -."""

REMOVED = {
    "job_token": (
        "it protected only the rendezvous. Let only the workers reach their ports (private network,"
        " firewall); see docs/guides/distributed.md."
    )
}
"""What to do instead of a removed flag, with _ for -; follows "… is not a flag any more: "."""

RENAMED_SECTIONS = {"independent": "local_sgd", "recogniser": "asr"}

RENAMED_VALUES = {"task": {"recogniser": "asr", "voice": "tts"}}
"""New values of a setting, by its name."""

REMOVED = {
    "emulate": (
        "was removed. `myxtts plan` predicts the throughput from given times of the stages, and"
        " `myxtts profile` measures those of a run."
    ),
    "picture": (
        "was removed. Give --trace FILE and open the file in ui.perfetto.dev; the report.html of a"
        " run draws its own timeline."
    ),
    "real_time": "was removed with --emulate, to which it belonged. Leave it out.",
}
"""What to do instead of a removed flag, by its name with _ for -."""
