"""Names that other programs use → ours, for messages about flags, YAML keys, sections and values.

The names are those of Coqui TTS and its Trainer, Piper, TensorFlowTTS, ESPnet, NeMo, Lightning,
Hugging Face's Trainer and Accelerate, torchrun, and the earlier MyXTTS; they are written with _ for
-.

An entry has names that mean the same, separated by spaces, and a text that says what to use
instead. In the text `{batch_size}` is our setting, `{precision=mixed_float16}` a setting with a
value, `{launch --workers=N}` a flag of one of our commands, `{--out}` a flag of the command itself,
and `{data:}` a section. A text that does not begin with `{` says why there is nothing to use.
`suggest.py` writes the messages.
"""

from collections.abc import Mapping

Names = tuple[tuple[str, str], ...]

_RUN_FOLDER = (
    "{run=NAME}: all files of a run are in runs/NAME, and {runs_dir=DIR} moves the folder runs"
)
_RESUME = (
    "{resume} with --run NAME to continue a run, or {init_from=runs/NAME} to start another one from"
    " its weights"
)
_REPLICAS = (
    "{model_gpus=0 1} for the GPUs of one machine, or {launch --workers=N} for several processes"
)
_CLUSTER = "{launch --nodes=HOST:PORT,HOST:PORT}, whose first address is that of the chief"
_STEPS = ", in steps instead of epochs"
_ONE_SCHEDULE = (
    "there is one schedule, a warm-up and then a cosine; {warmup_steps} and {final_lr_ratio}"
    " change it"
)
_ONE_OPTIMIZER = "the optimizer is AdamW; {learning_rate} and {weight_decay} change it"
_NETWORK = "the sizes of the network are not set one by one; {model_size} sets them all"
_AUDIO = (
    "all models have the same audio format: 22,050 Hz, 80 mel bands, hop 256; files of other rates"
    " are resampled"
)
_MEMORY = "{data_gpu_memory=MIB} and {model_gpu_memory=MIB}, in MiB"
_SPEAKERS = "the speakers are those of the corpus, in its column speaker"

_WORKERS: Names = (
    (
        "nproc_per_node nproc num_processes procs_per_node world_size ngpus num_gpus gpus",
        "{--workers=N}",
    ),
    (
        "nnodes num_nodes n_nodes num_machines",
        "{--nodes=HOST:PORT,HOST:PORT}, with the addresses of the machines",
    ),
    ("rank machine_rank", "{--node-rank=N}"),
    ("log_dir redirects tee", "{launch --logs=DIR}"),
    ("max_restarts", "a worker that fails ends the run, and {train --resume} continues it"),
)

SETTINGS: Names = (
    # placement
    ("data_device data_gpu_id", "{data_gpu=0}, with the number of the GPU"),
    ("gpu gpu_id device_id", "{model_gpus=0}, with the number of the GPU"),
    ("gpus gpu_ids device_ids visible_devices", "{model_gpus=0 1}, with the numbers of the GPUs"),
    (
        "devices num_gpus n_gpu n_gpus ngpu ngpus gpu_count num_devices",
        "{model_gpus=0 1}, with their numbers, not their number",
    ),
    (
        "multi_gpu use_multi_gpu ddp use_ddp distribute distributed data_parallel strategy"
        " distribution_strategy multiprocessing_distributed distributed_training",
        _REPLICAS,
    ),
    (
        "accelerator device use_gpu use_cuda cuda",
        "a run uses the first GPU, or the CPU if there is none; {data_gpu} and {model_gpu}"
        " choose others",
    ),
    ("cpu no_cuda use_cpu", "CUDA_VISIBLE_DEVICES=-1 in the environment hides the GPUs"),
    (
        "memory_fraction gpu_memory_fraction max_memory_fraction gpu_memory_limit memory_limit"
        " gpu_memory",
        _MEMORY,
    ),
    (
        "memory_growth allow_growth gpu_memory_growth",
        "memory grows as needed unless {model_gpu_memory=MIB} limits it",
    ),
    ("memory_isolation use_memory_isolation", "{enable_memory_isolation}"),
    (
        "prefetch_to_gpu enhanced_gpu_prefetch",
        "batches are always uploaded in advance; {prefetch_buffer_size} is their number",
    ),
    # torchrun, Accelerate, distributed training
    (
        "nproc_per_node nproc num_processes procs_per_node",
        "{model_gpus=0 1}: one process trains on all GPUs of a machine; {launch --workers=N}"
        " starts several",
    ),
    (
        "nnodes num_nodes n_nodes num_machines nodes",
        "{launch --nodes=HOST:PORT,HOST:PORT --node-rank N}, with the addresses of the machines",
    ),
    ("node_rank rank machine_rank dist_rank", "{launch --node-rank=N}"),
    (
        "master_addr master_port rdzv_endpoint dist_url distributed_url dist_init_method"
        " dist_master_addr dist_master_port main_process_ip main_process_port",
        _CLUSTER,
    ),
    (
        "rdzv_backend rdzv_id rdzv_conf standalone backend dist_backend distributed_backend",
        "workers exchange gradients by NCCL on GPUs and by gRPC on CPUs, without a choice",
    ),
    (
        "local_rank local_world_size",
        "no flag is needed: {launch} tells each worker its place in the cluster (TF_CONFIG)",
    ),
    (
        "world_size dist_world_size",
        "no flag is needed: it is the number of {model_gpus}, or of {launch --workers}",
    ),
    (
        "find_unused_parameters unused_parameters gradient_as_bucket_view ddp_comm_hook",
        "no flag is needed: the gradients of all variables are summed",
    ),
    (
        "fsdp deepspeed sharded_ddp zero_stage",
        "each replica holds the whole model; {gradient_checkpointing} and {batch_size} save memory",
    ),
    ("subsampling_factor", "{subsampling}"),
    # data
    (
        "train_file train_csv train_dir train_path train_dataset train_set train_filelist"
        " training_files training_data data data_path data_dir data_root dataset dataset_dir"
        " dataset_path corpus input_dir train_data_dir train_data_path train_json"
        " train_manifest manifest_filepath metadata metadata_csv metadata_file"
        " metadata_train_file csv_path meta_file_train root_path",
        "{train_data}",
    ),
    (
        "val_file val_csv val_dir val_path val_dataset val_data_path val_filelist val_manifest"
        " valid_dir valid_json dev_dir dev_data eval_file eval_data eval_dataset"
        " validation_file validation_files validation_data validation_dataset"
        " validation_datasets validation_filelist metadata_eval_file meta_file_val",
        "{val_data}",
    ),
    (
        "audio_dir audio_path audio_folder audio_base_dir wav_dir wavs_dir wav_path wavs_path"
        " wavs_train_dir wavs_eval_dir root_dir",
        "{audio_root}",
    ),
    (
        "dataset_format dataset_name formatter",
        "no flag is needed: the form of a corpus is recognised",
    ),
    (
        "download_ljspeech auto_download_ljspeech",
        "nothing is downloaded; without {train_data} a run makes the demo corpus",
    ),
    (
        "validation_split val_split val_fraction val_size val_ratio dev_fraction eval_split_size",
        "{validation_fraction}",
    ),
    ("eval_split_max_size", "{validation_fraction}, a fraction instead of a number of utterances"),
    ("train_split", "{validation_fraction}, the fraction that is not trained on"),
    (
        "limit_train_batches train_frac train_subset_fraction small_run max_train_samples"
        " fast_dev_run overfit_batch overfit_batches",
        "{max_steps=20} for a short trial, or a metadata file with fewer lines",
    ),
    ("min_audio_length min_duration min_audio_seconds", "{min_seconds}"),
    (
        "min_audio_len min_wav_length mel_length_threshold",
        "{min_seconds}, in seconds instead of samples or frames",
    ),
    ("max_audio_length max_audio_seconds max_utterance_seconds", "{max_seconds}"),
    (
        "max_audio_len max_wav_length max_mel_frames max_mel_length max_frames max_speech_len",
        "{max_seconds}, in seconds instead of samples or frames",
    ),
    ("max_duration", "{max_seconds} for an utterance, or {batch_seconds} for a batch"),
    (
        "max_text_length max_text_len min_text_len max_seq_len min_seq_len max_phoneme_ids"
        " max_text_tokens max_attention_sequence_length",
        "the length of texts has no limit; {max_seconds} limits the audio",
    ),
    (
        "phonemizer use_phonemes use_espeak_phonemes phoneme_type g2p text_cleaner"
        " text_cleaners cleaners tokenizer tokenizer_type",
        "{text_frontend}: phonemes by espeak-ng, or characters",
    ),
    (
        "vocab vocab_size vocab_file bpe_model token_list token_type",
        "the symbols are those of the corpus; {text_frontend} chooses phonemes or characters",
    ),
    (
        "lang locale language_code phoneme_language phonemizer_language espeak_voice"
        " espeak_language",
        "{language}",
    ),
    (
        "languages supported_languages",
        "the languages are those of the corpus, in its column language; {language} is for rows"
        " without one",
    ),
    (
        "speaker_id num_speakers n_speakers multispeaker enable_multispeaker"
        " use_speaker_embedding single_speaker speakers_file",
        _SPEAKERS,
    ),
    (
        "batch bs train_batch_size micro_batch_size per_device_train_batch_size"
        " per_gpu_train_batch_size batch_size_per_gpu batch_size_per_device",
        "{batch_size}",
    ),
    ("global_batch_size total_batch_size", "{batch_size}, the utterances of one replica"),
    (
        "eval_batch_size val_batch_size per_device_eval_batch_size",
        "validation uses the {batch_size} of training",
    ),
    (
        "auto_find_batch_size auto_scale_batch_size",
        "{batch_size}; docs/guides/memory.md has sizes that fit",
    ),
    ("batch_type", "{batch_size} for utterances, or {batch_seconds} for seconds of audio"),
    (
        "batch_bins batch_frames batch_duration max_tokens max_batch_duration",
        "{batch_seconds}, in seconds of audio",
    ),
    (
        "num_buckets batch_group_size group_by_length",
        "{buckets}: batches always have utterances of about equal duration",
    ),
    (
        "reference_audio_length ref_audio_length ref_audio_len_sec max_reference_audio_length",
        "{reference_seconds}",
    ),
    (
        "num_loader_workers num_eval_loader_workers num_val_loader_workers"
        " dataloader_num_workers loader_workers n_workers max_workers",
        "{num_workers}",
    ),
    (
        "workers",
        "{num_workers} to read files, or {launch --workers=N} to train as several processes",
    ),
    ("prefetch prefetch_factor prefetch_size dataloader_prefetch_factor", "{prefetch_buffer_size}"),
    ("pipeline_buffer_size", "{buffer_size}"),
    (
        "shuffle is_shuffle shuffle_buffer_size shuffle_buffer_multiplier",
        "the whole corpus is shuffled in every epoch",
    ),
    (
        "pin_memory persistent_workers dataloader_pin_memory",
        "files are read by threads of TensorFlow, not by processes",
    ),
    (
        "cache use_cache allow_cache in_memory cache_in_memory preload keep_all_data_on_mem",
        "{cache_dataset}",
    ),
    (
        "cache_dir phoneme_cache_path feature_cache compute_input_seq_cache",
        "{cache_dataset}, which writes to the run folder",
    ),
    ("static_shapes use_static_shapes pad_to_fixed_length", "{enable_static_shapes}"),
    ("disable_static_shapes", "static shapes are off unless {enable_static_shapes} turns them on"),
    (
        "augment augmentation data_augmentation enable_pitch_shift",
        "{vtlp=0.1} for other voices; {time_masks}, {frequency_masks} and {noise_probability}"
        " are for a recogniser",
    ),
    (
        "use_noise_augment noise_augment enable_noise_mixing noise_prob noise_apply_prob",
        "{noise_probability=0.5}",
    ),
    ("noise_db_range", "{noise_min_snr_db=0} and {noise_max_snr_db=20}"),
    ("rir_scp rir_apply_prob reverb_prob", "{reverb_probability=0.5}, with synthetic rooms"),
    ("speed_perturb speed_perturb_factors", "{speed_perturbation=0.1}"),
    ("specaug spec_augment use_spec_augment enable_spec_aug", "{time_masks} and {frequency_masks}"),
    (
        "sample_rate sampling_rate sr n_mels num_mels mel_channels n_fft fft_size filter_length"
        " hop_length hop_size fs win_length window_size mel_fmin mel_fmax fmin fmax",
        _AUDIO,
    ),
    (
        "trim_silence do_trim_silence trim_db normalize_audio do_sound_norm"
        " enable_loudness_normalization enable_vad",
        "the program does not trim or normalise audio; do this beforehand",
    ),
    (
        "use_norm f0_stat energy_stat stats_path",
        "no flag is needed: features are computed from the audio",
    ),
    # network
    (
        "model_type model_name arch architecture",
        "{task} for the kind of model, and {model_size} for its size",
    ),
    ("quality size preset", "{model_size}: tiny, small, normal or big"),
    (
        "optimization_level apply_fast_convergence auto_tune_performance",
        "nothing tunes a run on its own; {model_size}, {precision} and {compile=xla} change its"
        " speed",
    ),
    (
        "text_encoder_dim text_encoder_layers text_encoder_heads audio_encoder_dim"
        " audio_encoder_layers decoder_dim decoder_layers decoder_heads hidden_size"
        " hidden_channels inter_channels filter_channels d_model n_layers num_layers n_heads"
        " num_heads speaker_embedding_dim",
        _NETWORK,
    ),
    (
        "create_optimized_model lightweight_config compression_target",
        "nothing compresses a model; {model_size} chooses a smaller one, and {export} writes a"
        " SavedModel",
    ),
    ("decoder_strategy", "there is one decoder, which is not autoregressive"),
    ("dropout_rate dropout_prob p_dropout hidden_dropout_prob", "{dropout}"),
    (
        "segment_size",
        "{vocoder_segment_seconds} of a vocoder, {segment_seconds} of tts, in seconds instead"
        " of samples",
    ),
    (
        "enable_gradient_checkpointing use_gradient_checkpointing activation_checkpointing"
        " checkpoint_activations",
        "{gradient_checkpointing}",
    ),
    (
        "diffusion_steps diffusion_timesteps n_timesteps num_timesteps num_inference_steps nfe"
        " nfe_step",
        "{ode_steps}",
    ),
    ("guidance_scale cfg_scale cfg_strength cfg_weight", "{guidance}"),
    (
        "vocoder_type vocoder_name vocoder_path vocoder_model vocoder_checkpoint vocoder_ckpt",
        "{vocoder=runs/NAME}, a vocoder that was trained with {task=vocoder}; without one, the"
        " waves are Griffin-Lim's",
    ),
    (
        "enable_gst use_gst gst_num_style_tokens gst_num_heads",
        "there are no style tokens: a recording of the speaker sets the style",
    ),
    (
        "speaker_encoder_path speaker_encoder_type use_speaker_encoder"
        " use_pretrained_speaker_encoder disable_pretrained_speaker_encoder use_d_vector_file"
        " d_vector_file",
        "the reference encoder is trained with the model",
    ),
    (
        "mel_loss_weight kl_loss_weight duration_loss_weight loss_weights"
        " use_adaptive_loss_weights simple_loss label_smoothing use_huber_loss"
        " contrastive_loss_temperature contrastive_loss_margin",
        "the weights of the losses are fixed",
    ),
    # training
    (
        "steps num_steps total_steps train_steps max_train_steps train_max_steps"
        " num_train_steps num_training_steps total_training_steps iterations num_iterations"
        " max_iter max_iters max_update max_updates",
        "{max_steps}",
    ),
    (
        "epoch max_epoch max_epochs n_epochs nb_epochs num_epochs num_train_epochs train_epochs",
        "{epochs}",
    ),
    ("lr base_lr init_lr max_lr peak_lr initial_learning_rate", "{learning_rate}"),
    ("lr_scaling scale_lr auto_scale_lr linear_scaling", "{scale_learning_rate}"),
    (
        "warmup num_warmup_steps lr_warmup_steps warmup_updates num_warmup_updates warmup_iters",
        "{warmup_steps}",
    ),
    (
        "warmup_ratio warmup_proportion warmup_fraction",
        "{warmup_steps}, a number of steps instead of a fraction",
    ),
    ("warmup_epochs", "{warmup_steps}" + _STEPS),
    (
        "min_lr min_learning_rate end_learning_rate lr_min eta_min",
        "{final_lr_ratio}, relative to the peak",
    ),
    (
        "lr_scheduler lr_scheduler_type lr_scheduler_params lr_decay scheduler scheduler_type"
        " scheduler_params decay_steps scheduler_after_epoch use_warmup_cosine_schedule"
        " cosine_restarts",
        _ONE_SCHEDULE,
    ),
    (
        "optimizer optim opt optimizer_type optimizer_params momentum beta1 beta2 betas eps"
        " adam_beta1 adam_beta2 adam_epsilon",
        _ONE_OPTIMIZER,
    ),
    ("wd l2 weight_decay_rate", "{weight_decay}"),
    (
        "grad_clip clip_norm max_norm max_grad_norm clip_grad_norm grad_clip_norm"
        " grad_clip_thresh gradient_clip_val gradient_clip_norm gradient_clipping",
        "{gradient_clip}",
    ),
    (
        "grad_accum grad_acc accum_grad accum_steps accumulation_steps accumulate_grad_batches"
        " grad_accum_steps grad_accumulation grad_accumulation_steps"
        " gradient_accumulation_steps update_freq",
        "{gradient_accumulation}",
    ),
    ("fp16 half fp16_run use_fp16", "{precision=mixed_float16}"),
    ("bf16 use_bf16", "{precision=mixed_bfloat16}"),
    (
        "amp use_amp amp_level amp_backend mixed_precision use_mixed_precision train_dtype dtype",
        "{precision=mixed_float16}, or mixed_bfloat16 on GPUs since Ampere",
    ),
    ("loss_scale use_grad_scaler", "the loss is scaled as needed with {precision=mixed_float16}"),
    ("allow_tf32 enable_tf32 use_tf32", "{tf32}, which is on by default"),
    ("use_ema ema_rate ema_momentum model_ema", "{ema_decay}"),
    ("random_seed rng_seed manual_seed training_seed data_seed subset_seed", "{seed}"),
    (
        "pretrained pretrained_path pretrained_model pretrained_model_path"
        " pretrained_checkpoint model_name_or_path base_model base_checkpoint restore_path"
        " restore_from init_param init_from_ptl_ckpt init_from_nemo_model"
        " init_from_pretrained_model warm_start finetune finetune_from"
        " resume_from_single_speaker_checkpoint",
        "{init_from=runs/NAME}, the folder of a run",
    ),
    (
        "resume_from resume_path resume_checkpoint resume_from_checkpoint resume_training"
        " resume_if_exists auto_resume continue continue_path continue_training ckpt ckpt_path"
        " checkpoint checkpoint_path load_checkpoint load_model",
        _RESUME,
    ),
    (
        "reset_training overwrite overwrite_output_dir",
        "{run=NAME} with a new name, because a run is never overwritten",
    ),
    (
        "freeze_encoder freeze_layers freeze_speaker_encoder unfreeze_speaker_encoder"
        " trainable_layers",
        "{freeze}, which names parts of the network",
    ),
    ("cudnn_deterministic full_determinism use_deterministic_algorithms", "{deterministic}"),
    (
        "cudnn_benchmark cudnn_enable cudnn_enabled enable_tensorrt",
        "no flag is needed: TensorFlow chooses the kernels",
    ),
    (
        "xla use_xla enable_xla enable_xla_compilation jit jit_compile torch_compile use_compile",
        "{compile=xla} with {enable_static_shapes}",
    ),
    (
        "patience early_stopping early_stopping_patience",
        "a run does not stop early, but keeps its best checkpoint; {validate_every} sets how"
        " often it looks",
    ),
    (
        "run_eagerly enable_eager_debug detect_anomaly",
        "a loss that is not finite ends the run and names the utterances",
    ),
    # run
    (
        "run_name name exp_name exp_id experiment experiment_name project_name voice_name"
        " wandb_run_name",
        "{run}",
    ),
    (
        "out output outdir out_dir output_dir output_path save_dir save_path exp_dir work_dir"
        " workdir model_dir results_dir checkpoint_dir checkpoints_dir ckpt_dir"
        " default_root_dir log_dir logdir logging_dir tensorboard_dir tensorboard_log_dir",
        _RUN_FOLDER,
    ),
    (
        "log_interval log_step log_steps log_freq log_interval_steps log_every_n_steps"
        " logging_steps print_step print_every report_interval report_interval_iters",
        "{log_every}",
    ),
    (
        "save_step save_steps save_interval save_interval_steps save_every save_every_n_steps"
        " save_freq checkpoint_step checkpoint_interval every_n_train_steps",
        "{checkpoint_every}",
    ),
    (
        "checkpoint_epochs save_interval_epochs save_every_n_epochs every_n_epochs save_strategy",
        "{checkpoint_every}" + _STEPS,
    ),
    (
        "save_total_limit save_n_checkpoints save_top_k keep_last keep_last_n keep_nbest_models"
        " max_to_keep",
        "{keep_checkpoints}",
    ),
    (
        "eval_step eval_steps eval_every eval_interval eval_interval_steps val_step"
        " val_interval val_check_interval validation_interval validate_interval",
        "{validate_every}",
    ),
    (
        "run_eval do_eval enable_evaluation eval_strategy evaluation_strategy"
        " evaluation_interval eval_interval_epochs eval_every_n_epochs check_val_every_n_epoch",
        "{validate_every} for losses and {evaluate_every} for scores" + _STEPS,
    ),
    (
        "plot_step tb_plot_step sample_interval text2audio_interval_steps spectrogram_log_interval",
        "{sample_every}",
    ),
    (
        "test_sentences test_sentences_file num_test_examples enable_text2audio_eval",
        "{sample_every}: samples are of utterances that were held out",
    ),
    (
        "tensorboard use_tensorboard wandb use_wandb wandb_project wandb_entity report_to"
        " logger logger_uri dashboard_logger",
        "metrics are always written to the run folder, as JSON lines and for TensorBoard",
    ),
    ("verbose verbosity log_level quiet", "a run prints one line every {log_every} steps"),
    ("do_train", "no flag is needed: the command trains"),
    ("cfg conf config_file config_path config_name hparams hparams_file yaml", "{--config=FILE}"),
    # local SGD
    ("local_steps inner_steps sync_interval", "{sync_every}"),
)
"""Settings, for all commands that have them and for YAML files."""

COMMANDS: Mapping[str, Names] = {
    "merge": (
        (
            "gpu0_checkpoint gpu1_checkpoint gpu0 gpu1 checkpoint checkpoint1 checkpoint2"
            " checkpoint_0 checkpoint_1 checkpoint_a checkpoint_b model1 model2 models inputs"
            " input runs",
            "{--checkpoints=RUN RUN}, with all of them after one flag",
        ),
        ("out output_dir output_path output_checkpoint save_path merged", "{--output=RUN}"),
        ("alpha ratio weight", "{--weights=W W}, one for each input"),
        ("average avg mean method", "weights are always averaged"),
    ),
    "launch": _WORKERS,
    "check-distributed": _WORKERS,
    "shard": (
        (
            "train_csv train_data train_file input_csv input_dir data data_dir data_path"
            " dataset metadata csv_path",
            "{--input}",
        ),
        ("output output_dir out_dir output_path", "{--out}"),
        ("num_parts num_splits splits n num_shards", "{--shards}"),
    ),
    "synthesize": (
        (
            "output output_file output_path output_dir out_path out_file save_path wav_path",
            "{--out}",
        ),
        (
            "reference_audio reference_wav ref_audio ref_wav speaker_wav prompt_audio"
            " audio_prompt_path clone_voice prosody_reference multiple_reference_audios",
            "{--reference=FILE}",
        ),
        (
            "model model_path model_dir model_name checkpoint_dir checkpoint_path ckpt config"
            " config_path run_dir run_path runs_dir",
            "{--run=runs/NAME}: the best checkpoint of a run has the settings with it",
        ),
        ("steps", "{--ode-steps}"),
        ("speaking_rate length_scale rate tempo", "{--speed}"),
        ("lang language_idx language_id", "{--language}"),
        (
            "speaker speaker_id speaker_idx speaker_name list_speakers",
            "{--reference=FILE}, a recording of the speaker",
        ),
        (
            "temperature noise_scale noise_w top_k top_p repetition_penalty length_penalty",
            "the model does not draw tokens; {--seed} changes the noise",
        ),
        ("griffin_lim_iters num_iters n_iter", "{--iterations}"),
        (
            "vocoder_type vocoder_name vocoder_path vocoder_model vocoder_checkpoint vocoder_ckpt",
            "{--vocoder=runs/NAME}",
        ),
        ("cfg_scale cfg_strength guidance_scale", "{--guidance}"),
        ("input input_file file", "{--text-file}"),
    ),
    "evaluate": (
        (
            "model model_path model_dir checkpoint_dir checkpoint_path config config_path run_dir",
            "{--run=runs/NAME}",
        ),
        ("test_data eval_data val_data dataset corpus", "{--data}"),
        ("output output_dir out_dir", "{--out}"),
        ("steps", "{--ode-steps}"),
        ("num_samples max_samples n", "{--utterances}"),
        ("whisper_model asr_model", "{--asr=runs/NAME}, the run of a recogniser"),
    ),
    "preflight": (("num_steps", "{--steps=N}"),),
    "profile": (("steps", "{--num-steps=N}"),),
    "transcribe": (
        (
            "model model_path model_dir checkpoint_dir checkpoint_path config config_path run_dir",
            "{--run=runs/NAME}",
        ),
        ("data dataset test_data", "{--corpus}"),
        ("beam beam_size num_beams", "{--beam-width}"),
        (
            "audio input wav file",
            "the files stand after the flags, such as --run runs/NAME one.wav two.wav",
        ),
    ),
    "export": (
        (
            "model model_path model_dir checkpoint_dir checkpoint_path config config_path run_dir",
            "{--run=runs/NAME}",
        ),
        ("output output_dir output_path out_dir", "{--out}"),
    ),
    "corpus": (
        ("output output_dir out_dir data_dir", "{--out}"),
        ("num_utterances num_samples n size", "{--utterances}"),
        ("language lang", "{--languages=en ka}"),
        ("num_speakers n_speakers", "{--speakers}"),
    ),
}
"""Flags of single commands."""

SECTIONS: Names = (
    (
        "distributed ddp parallel dist cluster",
        "configs/distributed.yaml has the settings for many replicas, {launch --workers=N}"
        " starts the workers, and docs/guides/distributed.md explains both. For the GPUs of one"
        " machine {model_gpus=0 1} is enough",
    ),
    (
        "trainer train train_config train_params training_args training_params",
        "{training:}, and {placement:} for devices",
    ),
    ("optimizer optim optimizers optimizer_params", "{training:}; " + _ONE_OPTIMIZER),
    ("scheduler lr_scheduler lr_schedule", "{training:}; " + _ONE_SCHEDULE),
    ("audio audio_params feature features preprocess_params preprocessing", _AUDIO),
    ("gpu gpus hardware device devices system resources memory strategy", "{placement:}"),
    (
        "dataset datasets dataset_config dataloader dataloaders data_loader loader data_config"
        " data_params corpus train_ds validation_ds",
        "{data:}",
    ),
    (
        "network net architecture model_args model_config model_params fastspeech2_params "
        "tacotron2_params generator_params",
        "{model:}; " + _NETWORK,
    ),
    ("text tokenizer characters phonemizer", "{data:} with {text_frontend} and {language}"),
    (
        "augment specaug spec_augment",
        "{data:} with {vtlp}, {asr:} with {time_masks} and {frequency_masks}, and"
        " {augmentation:} for waves",
    ),
    (
        "checkpoint checkpoints checkpointing log logging logger output exp_manager callbacks"
        " experiment eval evaluation validation",
        "{run:}",
    ),
    ("finetune finetuning fine_tuning pretrained", "{training:} with {init_from} and {freeze}"),
    ("loss losses loss_weights", "the weights of the losses are fixed"),
    ("discriminator discriminator_params", "{vocoder:}"),
    ("inference synthesis sampling", "{model:} with {ode_steps} and {guidance}"),
)
"""Sections of YAML files."""

VALUES: Mapping[str, Names] = {
    "precision": (
        ("16 16-mixed fp16 float16 half amp mixed mixed_fp16", "mixed_float16"),
        ("bf16 bf16-mixed bfloat16 mixed_bf16", "mixed_bfloat16"),
        ("32 32-true fp32 float full", "float32"),
    ),
    "model_size": (
        ("large xl x-large high huge", "big"),
        ("medium base default standard", "normal"),
        ("low", "small"),
        ("x-low mini nano micro xs", "tiny"),
    ),
    "compile": (("true on yes jit", "xla"), ("false no none", "off")),
    "task": (
        ("text-to-speech text_to_speech synthesis xtts", "tts"),
        ("speech-to-text speech_recognition stt ctc", "asr"),
    ),
    "text_frontend": (
        ("phoneme ipa espeak espeak-ng g2p", "phonemes"),
        ("character chars char graphemes letters text", "characters"),
    ),
}
"""Values of settings."""
