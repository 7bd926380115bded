"""Settings of the libraries that make speech on a CPU quicker; what each brings is in docs/design/notebook.md."""

import os

from registry.base.processor import features

AVX512 = frozenset(("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"))
"""What CTranslate2 wants of a processor that is told to use its AVX-512 paths: it raises on others."""


def widest_vectors() -> None:
    """Have CTranslate2 use AVX-512 where the processor has it; by itself it stops at AVX2.

    It reads this when it first computes. A setting that is there already stays.
    """
    if features() >= AVX512:
        os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")


def one_thread_for_numpy() -> None:
    """Features in NumPy on one thread: its products are small, and a second thread waits by spinning."""
    from threadpoolctl import ThreadpoolController

    ThreadpoolController().select(internal_api="openblas").limit(limits=1)
