# ruff: noqa: E501, SIM905
"""Words for the made-up sentences. Half of all words in the data are random letters, so this list need not be complete."""

from __future__ import annotations

COMMON: tuple[str, ...] = tuple(
    """a about above across act add after afternoon again age ago air all almost alone along already also always am
an and animal another answer any anything apple are area arm around arrive art as ask at aunt autumn away baby back bad
bag ball banana bank bath be beach bear beautiful because become bed been before begin behind bell below best better
between bicycle big bird birthday black blue boat body book boring born both bottle box boy branch bread break breakfast
bridge bright bring broken brother brown build building bus business busy but butter button buy by cake call camera can
car card care careful carrot carry castle cat catch centre century chair chance change cheap cheese chicken child
children chocolate choose circle city class clean clear climb clock close clothes cloud coat coffee cold colour come
company computer cook cool corner cost could count country course cousin cow cross cry cup curtain customer cut dance
dangerous dark date daughter day deep desk did different dinner dirty do doctor does dog door down dozen dream dress
drink drive dry during each early earth east easy eat egg eight elephant else email empty end energy engine enjoy
enough evening every everyone everything example excellent eye face fact family famous far farm fast father feel few
field fight film final find fine finger finish fire first fish five floor flower fly follow food foot football for forest
forget four fox free fresh friday friend from front fruit full fun funny future game garden gate get gift girl give glad
glass go gold good grandmother grass great green ground group grow guess guitar had hair half hand happy hard has hat
have he head healthy hear heart heavy hello help her here high hill him his history holiday home hope horse hospital hot
hotel hour house how hungry hurry husband i ice idea if important in inside interesting into is island it its jacket
job join journey joy juice jump june just keep key kind king kitchen knife know lady lake lamp land language large last
late laugh lazy leaf learn leave left lemon less lesson letter library life light like line lion listen little live
long look lose loud love low lucky lunch machine make man many map march market matter may me meal mean meat meet
memory message metal middle milk million mind minute mirror moment monday money monkey month moon more morning most
mother mountain mouse mouth move much museum music must my name narrow nature near neck need never new news next nice
night nine no nobody noise north nose not note nothing now number ocean october of off office often oil old on once one
onion only open or orange order other our out outside over own page paint pair paper parent park part party past path
pay pen pencil people pepper perfect person phone photo piano picture piece pink place plan plane plant plate play
please pocket point police poor popular possible post potato present pretty price problem public pull purple push put
quarter queen question quick quiet quite rabbit radio rain read ready real really red remember rest restaurant rice rich
ride right ring river road roof room rose round run sad safe salad salt same sand sandwich saturday save say school
science sea season second secret see sell send serious seven several shape she ship shirt shoe shop short should show
sign silver simple since sing sister sit six size sky sleep slow small smart smile snow so soap sock soft some someone
something sometimes son song soon sorry soup south space speak special speed spoon sport spring square stair stand star
start station stay still stone stop store storm story strange street strong student study subject such sugar summer sun
sunday supper sure surprise sweet swim system table take talk tall taste teacher team telephone television tell ten
tennis than thank that the their them then there these they thick thin thing think third this those three through
thursday ticket tiger time tired to today together tomorrow tonight too tooth top toward town toy train travel tree
trip trouble true try tuesday turn twelve two umbrella uncle under understand university until up upon us use useful
usual valley very village visit voice wait walk wall want warm was wash watch water way we weather wednesday week
welcome well were west wet what wheel when where which white who whole why wide wife will wind window winter with
without woman wonder wood word work world would write wrong year yellow yesterday yet you young your zebra zero zoo""".split()
)

SHORTENED: tuple[str, ...] = (
    "don't", "it's", "i'm", "can't", "we'll", "you're", "isn't", "let's", "that's", "o'clock", "well-known", "re-use",
)  # fmt: skip

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOWELS = "aeiou"
CONSONANTS = "bcdfghjklmnpqrstvwxyz"
CLUSTERS: tuple[str, ...] = tuple(
    "b bl br c ch cl cr d dr f fl fr g gl gr h j k kn l m n p ph pl pr qu r s sc sch scr sh sk sl sm sn sp spr squ st"
    " str sw t th thr tr tw v w wh wr y z".split()
)
ENDINGS: tuple[str, ...] = (
    *"b ck d ft g l ll lt m mp n nd ng nk nt p r rd rk rn rt s sh ss st t th x y".split(), "", "", "", "",
)  # fmt: skip

NAMES: tuple[str, ...] = tuple(
    "anna bob carl dora emil fay greta hugo ines john kate leo mia nils olga paul rosa sam tina uwe vera will yara zoe"
    " adam ben clara dave ella finn george helen ivan julia kevin laura mark nora oscar petra quentin rita simon".split()
)
CITIES: tuple[str, ...] = tuple(
    "oslo paris rome berlin madrid london vienna dublin prague lisbon athens warsaw zurich tokyo cairo lima delhi"
    " boston milan kiev lyon porto ghent basel bergen turin seville munich".split()
)
