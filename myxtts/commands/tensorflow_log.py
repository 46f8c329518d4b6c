"""What TensorFlow's C++ code reads from the environment, and what it writes to stderr.

While TensorFlow is imported, its libraries write lines before their log level applies, and without
an NVIDIA driver they report an error for the GPU that is not there. They hide the lines of a
command and mean nothing to its user. No setting turns them off: absl offers Python no access to the
log of the libraries, and TF_ENABLE_ONEDNN_OPTS=0, which silences one of them, changes the results
of training.

libmpg123 reports each jump into the middle of an MP3 file, where a frame may need bits of the
frames before it. The check for truncated files makes such a jump (`myxtts.data.audio_file`):
thousands of lines for a corpus of MP3 files.
"""

import os
import re
import signal
import sys

_NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|I\d{4} .*\] oneDNN custom operations are on\."
    rb"|I\d{4} .*\] Could not find cuda drivers on your machine, GPU will not be used\."
    rb"|I\d{4} .*\] This TensorFlow binary is optimized to use available CPU instructions"
    rb"|To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler"
    rb" flags\."
    rb"|E\d{4} .* cuda_(?:dnn|fft|blas)\.cc:.*\] Unable to register \w+ (?:factory|plugin)"
    rb"|W\d{4} .* computation_placer\.cc:.*\] computation placer already registered\."
    # no driver
    rb"|E\d{4} .* cuda_platform\.cc:.*\] failed call to cuInit: .*UNKNOWN ERROR \(303\)"
    rb"|I\d{4} .* service\.cc:.*\] (?:XLA service \S+ initialized for platform|  StreamExecutor \[)"
    rb"|W\d{4} .*\] Input of GeneratorDatasetOp::Dataset will not be optimized because"
    rb"|E\d{4} .*\] oneDNN supports DT_INT32 only on platforms with AVX-512\. Falling back to"
    rb"|\[src/libmpg123/layer3\.c:.*\] error: part2_3_length \(\d+\) too large for available bit"
    rb" count"
    rb"|I\d{4} .* device_compiler\.h:.*\] Compiled cluster using XLA!"
)


def set_environment() -> None:
    """Set what TensorFlow and CUDA read from the environment, unless the user has set it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # warnings and errors
    # As in nvidia-smi; by default the fastest GPU is first.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def filter_stderr() -> None:
    """Pass file descriptor 2 through a process that drops the lines above and no others.

    Call it before TensorFlow is imported. The filter is a separate process, so that the last lines
    of a process that aborts still arrive. Python's `sys.stderr` keeps writing to the original file
    descriptor, line by line. Does nothing without fork or stderr, or if the user wants the whole
    log (TF_CPP_MIN_LOG_LEVEL=0).
    """
    if not hasattr(os, "fork") or os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return
    try:
        original = os.dup(2)
    except OSError:
        return
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)  # or the pipe would never end
        _run_filter(reading, original)
    os.close(reading)
    os.dup2(writing, 2)
    os.close(writing)
    sys.stderr = os.fdopen(
        original, "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace"
    )


def _run_filter(reading: int, original: int) -> None:
    """Copy lines until every process that writes to the pipe has ended; never returns."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The process that is filtered may still write after these.
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (0, 1, 2):
        if descriptor not in (reading, original):
            os.close(descriptor)
    try:
        _copy_lines(reading, original)
    finally:
        os._exit(0)


def _copy_lines(reading: int, original: int) -> None:
    rest = b""
    while block := os.read(reading, 65536):
        *lines, rest = (rest + block).split(b"\n")
        os.write(original, b"".join(line + b"\n" for line in lines if not _NOISE.match(line)))
    os.write(original, rest)
