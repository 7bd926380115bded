"""Engines get no secrets from the environment, and everything that CUDA's libraries read there."""

import os

import pytest

from runtime.config.secret_variables import return_secrets, take_secrets

FOR_ENGINES = (
    "CUDA_VISIBLE_DEVICES", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_TOKEN", "LD_LIBRARY_PATH", "NCCL_IB_PKEY",
    "NCCL_SOCKET_IFNAME", "PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT",
)  # fmt: skip
SECRET = ("AWS_SECRET_ACCESS_KEY", "CLAUDE", "OPENAI_API_KEY", "RAY_AUTH", "VLLM_API_KEY", "github_token")


def test_engines_get_what_cuda_needs_and_the_api_process_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = dict.fromkeys((*FOR_ENGINES, *SECRET), "x")
    monkeypatch.setattr(os, "environ", variables.copy())
    take_secrets(["CLAUDE"])
    assert os.environ.keys() == set(FOR_ENGINES)
    return_secrets()
    assert os.environ == variables
