# CARP in a container, on a CPU or, with the NVIDIA container toolkit, on a GPU.
#   docker build -t carp .
#   docker run --rm --shm-size=1g -v "$PWD:/work" carp train PHOTOS --out runs/photos
#   docker run --rm --gpus all --shm-size=8g -v "$PWD:/work" carp train PHOTOS --out runs/photos
FROM python:3.12-slim

# Runs as a user without privileges; its files in /work belong to the user that --user names
RUN useradd --create-home carp
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN pip install --no-cache-dir '/source[eval,log,onnx,parquet]' && rm -rf /source
USER carp
WORKDIR /work
ENTRYPOINT ["carp"]
CMD ["--help"]
