"""The process that decodes untrusted recordings: jobs in, samples out.

Its only argument is `DecoderLimits` as a JSON object.

    job      {"path": ..., "seconds": ...}
    answer   frames of kind (1 byte), length (4 bytes, little-endian) and body, in this order:
             'A' at once: the job has arrived
             'D' the length in seconds according to the container, as text ('' if it has none)
             'S' samples: 16-bit little-endian, one channel, 16,000 per second; any number of frames
             'E' the end, or 'X' an error: a word of `WHY` and a sentence, separated by a tab

It may be killed at any time. Nothing outside the file can be reached: no network, no other files (playlists and
references), only demuxers and protocols for recordings, bounded memory, no core dumps, no written files.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO, NamedTuple

RATE = 16_000
"""Samples per second that the network takes."""
BLOCK = 8 * RATE
"""Samples in a frame."""
WHY = ("empty", "unreadable", "no_audio", "damaged", "too_long", "memory", "unfit", "fault")
CODECS = (
    "aac,ac3,adpcm_,alac,als,amr,ape,dca,dsd_,eac3,flac,gsm,mlp,mp1,mp2,mp3,opus,libopus,pcm_,truehd,tta,vorbis,"
    "wavpack,wma"
)
"""Prefixes of the names of audio codecs."""
WAV_PCM = "\x01\0\0\0"
DEMUXERS = (
    "wav,w64,rf64,aiff,au,caf,mp3,flac,ogg,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,aac,ac3,eac3,amr,amrnb,amrwb,asf,avi,"
    "mpegts,mpeg,flv,ape,wv,tta,dsf,truehd,dts,opus"
)


EXACT = ("flac",)
"""Demuxers of files that state the length of their sound, which others estimate, or state for a whole film."""
LOST_SECONDS = 1.0
"""Seconds of the stated length that may be missing. FFmpeg reports no error for frames of a FLAC that it skips."""


class DecoderLimits(NamedTuple):
    """Bounds from `registry.bounds`, which cannot be imported here."""

    sample_rate_least: int
    sample_rate_most: int
    channels: int
    damaged_packets: int
    overstated: int
    decoder_memory: int


class UndecodableFile(Exception):
    """A recording that cannot be used. Its arguments are a word of WHY and a sentence."""


def confine(memory: int) -> None:
    """Set limits that libraries cannot exceed, and make this process die with its parent."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    _, allowed = resource.getrlimit(resource.RLIMIT_AS)
    most = memory if allowed == resource.RLIM_INFINITY else min(memory, allowed)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))


def send(out: BinaryIO, kind: bytes, body: bytes = b"") -> None:
    out.write(kind + struct.pack("<I", len(body)) + body)
    out.flush()


def decode(path: str, seconds: float, fit: DecoderLimits, out: BinaryIO) -> None:
    """Decode `path` and send its samples, at most `seconds`. Raises UndecodableFile."""
    import av

    if not os.path.getsize(path):
        raise UndecodableFile("empty", "The file is empty.")
    options = {"format_whitelist": DEMUXERS, "protocol_whitelist": "", "enable_drefs": "0"}
    with open(path, "rb") as file:
        try:
            container = av.open(file, mode="r", options=options, metadata_errors="ignore", buffer_size=1 << 16)
        except (av.FFmpegError, ValueError, EOFError) as error:
            raise UndecodableFile(*_opening(error)) from None
        with container:
            if not container.streams.audio:
                raise UndecodableFile("no_audio", "The file holds no sound.")
            length = container.duration / 1_000_000 if container.duration and container.duration > 0 else None
            stream = container.streams.audio[0]
            if stream.codec_context is None:
                raise UndecodableFile("unfit", "The file does not say how its sound is stored: send flac, mp3 or opus.")
            check_codec(stream.codec_context.name)
            check_tag(container.format.name, stream.codec_context.codec_tag, stream.codec_context.name)
            check_shape(stream.codec_context.sample_rate, stream.codec_context.channels, fit)
            if (length or 0.0) > fit.overstated * seconds:
                raise UndecodableFile("too_long", f"The recording is longer than {seconds:g} seconds.")
            send(out, b"D", f"{length:.3f}".encode() if length is not None else b"")
            _samples(container, seconds, fit, out, av, length if container.format.name in EXACT else None)


def check_codec(name: str) -> None:
    """Raise UndecodableFile for a codec that recordings do not use."""
    if not name.startswith(tuple(CODECS.split(","))):
        raise UndecodableFile(
            "unfit", f"The sound is stored as {name}, which is not decoded here: send flac, mp3 or opus."
        )


def check_tag(container: str, tag: str, codec: str) -> None:
    """Raise UndecodableFile for a WAV file whose content contradicts its header."""
    if container == "wav" and tag == WAV_PCM and not codec.startswith("pcm_"):
        raise UndecodableFile("unfit", f"The file says that it is plain PCM, and is {codec}: send it as what it is.")


def check_shape(rate: int, channels: int, fit: DecoderLimits) -> None:
    """Raise UndecodableFile for an impossible sample rate or number of channels.

    FFmpeg reports more than a few hundred channels as 0.
    """
    if not fit.sample_rate_least <= rate <= fit.sample_rate_most:
        can_be = f"{fit.sample_rate_least} to {fit.sample_rate_most} can be"
        raise UndecodableFile("unfit", f"The file says that it has {rate} samples a second: {can_be}.")
    if not 0 < channels <= fit.channels:
        many = f"{channels} channels" if channels else "no channels, or far too many"
        raise UndecodableFile("unfit", f"The file says that it has {many}: 1 to {fit.channels} can be.")


def _opening(error: Exception) -> tuple[str, str]:
    if getattr(error, "errno", None) == errno.ENOMEM:
        return "memory", "The file needs more memory to decode than is allowed."
    return "unreadable", "The file cannot be read as a recording: send wav, mp3, flac, ogg, m4a or webm."


def _samples(container: Any, seconds: float, fit: DecoderLimits, out: BinaryIO, av: Any, stated: float | None) -> None:
    """Send the samples. stated: the seconds that there must be; None if unknown."""
    stream = container.streams.audio[0]
    resampler, form = av.AudioResampler(format="s16", layout="mono", rate=RATE), None
    most, sent, failed = int(seconds * RATE), 0, 0
    pending = bytearray()

    def take(frames: Any) -> None:
        nonlocal sent
        for frame in frames:
            pending.extend(bytes(frame.planes[0])[: 2 * frame.samples])
        if sent + len(pending) // 2 > most:
            raise UndecodableFile("too_long", f"The recording is longer than {seconds:g} seconds.")
        while len(pending) >= 2 * BLOCK:
            send(out, b"S", bytes(pending[: 2 * BLOCK]))
            del pending[: 2 * BLOCK]
            sent += BLOCK

    def decoded_seconds() -> float:
        return (sent + len(pending) // 2) / RATE

    try:
        for packet in container.demux(stream):
            try:
                for frame in packet.decode():
                    check_shape(frame.sample_rate, frame.layout.nb_channels, fit)  # it may differ from the header
                    frame.pts = None  # ignore gaps and jumps in timestamps, which would add silence or lose sound
                    before, form = form, (frame.format.name, frame.layout.name, frame.sample_rate)
                    if before not in (None, form):  # the format changed, and a resampler supports only one
                        take(resampler.resample(None))
                        resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
                    take(resampler.resample(frame))
            except av.FFmpegError as error:
                if getattr(error, "errno", None) == errno.ENOMEM:
                    raise UndecodableFile("memory", "The file needs more memory to decode than is allowed.") from None
                failed += 1
                if failed > fit.damaged_packets:
                    raise UndecodableFile(
                        "damaged", f"The recording is damaged after {decoded_seconds():.1f} seconds."
                    ) from None
    except av.FFmpegError:  # the container itself
        raise UndecodableFile("damaged", f"The recording is damaged after {decoded_seconds():.1f} seconds.") from None
    take(resampler.resample(None))
    if not sent and not pending:
        raise UndecodableFile("damaged" if failed else "no_audio", "The file holds no sound that can be decoded.")
    if stated is not None and decoded_seconds() < stated - LOST_SECONDS:
        raise UndecodableFile(
            "damaged", f"The recording is damaged: {decoded_seconds():.1f} of its {stated:.1f} seconds can be decoded."
        )
    if pending:
        send(out, b"S", bytes(pending))


def main() -> None:
    fit = DecoderLimits(**json.loads(sys.argv[1]))
    confine(fit.decoder_memory)
    import av

    av.logging.set_level(None)
    out = sys.stdout.buffer
    send(out, b"E")  # ready
    for line in sys.stdin.buffer:
        job = json.loads(line)
        send(out, b"A")
        try:
            decode(job["path"], job["seconds"], fit, out)
            send(out, b"E")
        except UndecodableFile as refused:
            send(out, b"X", "\t".join(refused.args).encode())
        except MemoryError:
            send(out, b"X", b"memory\tThe file needs more memory to decode than is allowed.")
            return  # the libraries' state is unreliable now
        except (OSError, ArithmeticError, ValueError, LookupError, RuntimeError) as error:
            send(out, b"X", f"damaged\tThe recording could not be decoded ({type(error).__name__}).".encode())
            return
        except Exception as error:  # our fault, or an unexpected library version
            send(out, b"X", f"fault\t{type(error).__name__}: {error}".encode())
            return


if __name__ == "__main__":
    main()
