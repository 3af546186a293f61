# docker build -t nl2sql . && docker run --rm nl2sql ask "How many customers are there?" --db packaged:scale_models
FROM python:3.11-slim
WORKDIR /opt/nl2sql
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY data data
COPY notebooks notebooks
COPY examples examples
COPY scripts scripts
COPY nl2sql_verifiers.py ./
COPY nl2sql nl2sql
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt ".[local,grammar]" \
    && useradd --create-home reader
USER reader
RUN nl2sql models pull smollm2-135m
WORKDIR /home/reader
ENTRYPOINT ["nl2sql"]
