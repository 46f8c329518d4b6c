# docker build -t myxtts .                  for CPUs
# docker build -t myxtts --target gpu .     for NVIDIA GPUs; docker run --gpus all …
# docker run --rm -v "$PWD:/work" myxtts synthesize --run runs/demo --text "Hello." --out hello.wav
# docker run --rm -v "$PWD:/work" -p 127.0.0.1:8080:8080 myxtts serve --model demo_onnx --host 0.0.0.0
FROM python:3.12-slim AS base
WORKDIR /src
COPY pyproject.toml requirements*.txt README.md LICENSE ./
COPY myxtts myxtts
WORKDIR /work
ENTRYPOINT ["myxtts"]
CMD ["--help"]

FROM base AS gpu
RUN pip install --no-cache-dir "/src[gpu,export,serve]"

FROM base AS cpu
RUN pip install --no-cache-dir "/src[export,serve]"
