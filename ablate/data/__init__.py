"""Text in, batches out. NumPy only.

corpora, texts, sources   documents: named recipes, the user's files, Hugging Face datasets
tokenizers, prepared      documents to token files in OLMo's own format, split by document, once
raw, tokens               token files as they are, checked and memory-mapped
order, documents          which sequences a step sees; documents and repetitions inside them
ngrams                    the most frequent n-grams
dataset, opening          Data, Batch, open_data
inference                 what caches are measured on
corrupted, shifted        validation under noise, and of another domain
"""

from ablate.data.corpora import CORPORA
from ablate.data.dataset import IGNORED, Batch, Data
from ablate.data.documents import document_lengths, repetitive
from ablate.data.inference import (
    check_inference,
    held_out_prompts,
    preheated_ngrams,
    stream_tokens,
)
from ablate.data.ngrams import frequent_ngrams
from ablate.data.opening import open_data, prepare_files
from ablate.data.shifted import open_shifted

__all__ = [
    "CORPORA",
    "IGNORED",
    "Batch",
    "Data",
    "check_inference",
    "document_lengths",
    "frequent_ngrams",
    "held_out_prompts",
    "open_data",
    "open_shifted",
    "preheated_ngrams",
    "prepare_files",
    "repetitive",
    "stream_tokens",
]
