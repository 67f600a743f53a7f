from __future__ import annotations

import json
from pathlib import Path

import pytest

from ablate.errors import DataError, StudyError
from ablate.rundir import check_frozen_data, data_key, frozen_data, keep_data

CONFIG = {"data": {"path": "text", "corpus": "kjv", "cache_dir": "a"}, "model": {"eos_token_id": 3}}


def test_the_text_that_a_study_began_with_stands(tmp_path: Path) -> None:
    key = data_key(CONFIG)
    check_frozen_data(tmp_path / "nowhere", CONFIG, "x" * 64)
    keep_data(tmp_path, {key: "x" * 64})
    keep_data(tmp_path, {key: "y" * 64, "other": "z"})
    assert frozen_data(tmp_path) == {key: "x" * 64, "other": "z"}
    check_frozen_data(tmp_path, CONFIG, "x" * 64)
    with pytest.raises(DataError, match=r"data.path=text: the text has changed .* xxxxxxxx then"):
        check_frozen_data(tmp_path, CONFIG, "y" * 64)


def test_where_tokens_are_kept_is_no_other_text_and_the_end_of_a_document_is() -> None:
    elsewhere = {**CONFIG, "data": {**CONFIG["data"], "cache_dir": "b"}}
    assert data_key(elsewhere) == data_key(CONFIG)
    assert data_key({**CONFIG, "model": {"eos_token_id": 4}}) != data_key(CONFIG)
    assert data_key({**CONFIG, "data": {**CONFIG["data"], "path": "c"}}) != data_key(CONFIG)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text(json.dumps([1]))
    with pytest.raises(StudyError, match=r"data.json is damaged.*or delete it: the next launch"):
        frozen_data(tmp_path)
