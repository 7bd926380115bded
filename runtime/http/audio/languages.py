"""Languages of Whisper models: ISO 639 codes and the English names that OpenAI's answers carry."""

from registry.errors import BadRequest

_TABLE = """
af afrikaans|am amharic|ar arabic|as assamese|az azerbaijani|ba bashkir|be belarusian|bg bulgarian|bn bengali|bo tibetan
br breton|bs bosnian|ca catalan|cs czech|cy welsh|da danish|de german|el greek|en english|es spanish|et estonian
eu basque|fa persian|fi finnish|fo faroese|fr french|gl galician|gu gujarati|ha hausa|haw hawaiian|he hebrew|hi hindi
hr croatian|ht haitian creole|hu hungarian|hy armenian|id indonesian|is icelandic|it italian|ja japanese|jw javanese
ka georgian|kk kazakh|km khmer|kn kannada|ko korean|la latin|lb luxembourgish|ln lingala|lo lao|lt lithuanian
lv latvian|mg malagasy|mi maori|mk macedonian|ml malayalam|mn mongolian|mr marathi|ms malay|mt maltese|my myanmar
ne nepali|nl dutch|nn nynorsk|no norwegian|oc occitan|pa punjabi|pl polish|ps pashto|pt portuguese|ro romanian
ru russian|sa sanskrit|sd sindhi|si sinhala|sk slovak|sl slovenian|sn shona|so somali|sq albanian|sr serbian
su sundanese|sv swedish|sw swahili|ta tamil|te telugu|tg tajik|th thai|tk turkmen|tl tagalog|tr turkish|tt tatar
uk ukrainian|ur urdu|uz uzbek|vi vietnamese|yi yiddish|yo yoruba|yue cantonese|zh chinese
"""

NAMES: dict[str, str] = dict(entry.split(" ", 1) for entry in _TABLE.strip().replace("\n", "|").split("|"))
"""Code to name."""
_CODES = {name: code for code, name in NAMES.items()} | {"jv": "jw"}


def name(code: str) -> str:
    """'en' to 'english'; a code that is not in the table stays as it is."""
    return NAMES.get(code, code)


def language_code(language: str) -> str:
    """The code of a language as engines and providers tell it, by code or by name; others stay as they are."""
    lower = language.lower()
    return _CODES.get(lower, lower)


def code(given: str) -> str | None:
    """A code or an English name as a code; None for ''. Raises BadRequest for anything else."""
    language = given.strip().lower()
    if not language:
        return None
    if language in NAMES:
        return language
    if language in _CODES:
        return _CODES[language]
    raise BadRequest(
        f"'{given[:32]}' is no language. Send an ISO 639-1 code such as 'en', or leave 'language' out.",
        param="language",
    )
