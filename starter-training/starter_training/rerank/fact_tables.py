"""Small tables of general knowledge, written for this project: one row per line, fields separated by bars."""

COUNTRIES = """\
France|Paris|euro|French|Europe
Germany|Berlin|euro|German|Europe
Italy|Rome|euro|Italian|Europe
Spain|Madrid|euro|Spanish|Europe
Portugal|Lisbon|euro|Portuguese|Europe
Austria|Vienna|euro|German|Europe
Greece|Athens|euro|Greek|Europe
Ireland|Dublin|euro|English|Europe
Finland|Helsinki|euro|Finnish|Europe
Sweden|Stockholm|krona|Swedish|Europe
Norway|Oslo|krone|Norwegian|Europe
Denmark|Copenhagen|krone|Danish|Europe
Poland|Warsaw|zloty|Polish|Europe
Hungary|Budapest|forint|Hungarian|Europe
Romania|Bucharest|leu|Romanian|Europe
Russia|Moscow|ruble|Russian|Europe
Ukraine|Kyiv|hryvnia|Ukrainian|Europe
Turkey|Ankara|lira|Turkish|Asia
Japan|Tokyo|yen|Japanese|Asia
China|Beijing|yuan|Chinese|Asia
India|New Delhi|rupee|Hindi|Asia
Thailand|Bangkok|baht|Thai|Asia
Vietnam|Hanoi|dong|Vietnamese|Asia
Indonesia|Jakarta|rupiah|Indonesian|Asia
Iran|Tehran|rial|Persian|Asia
Iraq|Baghdad|dinar|Arabic|Asia
Israel|Jerusalem|shekel|Hebrew|Asia
Nepal|Kathmandu|rupee|Nepali|Asia
Mongolia|Ulaanbaatar|tugrik|Mongolian|Asia
South Korea|Seoul|won|Korean|Asia
Egypt|Cairo|pound|Arabic|Africa
Kenya|Nairobi|shilling|Swahili|Africa
Ethiopia|Addis Ababa|birr|Amharic|Africa
Morocco|Rabat|dirham|Arabic|Africa
Ghana|Accra|cedi|English|Africa
Senegal|Dakar|franc|French|Africa
Canada|Ottawa|dollar|English|North America
Mexico|Mexico City|peso|Spanish|North America
Cuba|Havana|peso|Spanish|North America
the United States|Washington|dollar|English|North America
Brazil|Brasilia|real|Portuguese|South America
Argentina|Buenos Aires|peso|Spanish|South America
Peru|Lima|sol|Spanish|South America
Chile|Santiago|peso|Spanish|South America
Colombia|Bogota|peso|Spanish|South America
Australia|Canberra|dollar|English|Oceania
New Zealand|Wellington|dollar|English|Oceania
the Netherlands|Amsterdam|euro|Dutch|Europe
Belgium|Brussels|euro|Dutch|Europe
Switzerland|Bern|franc|German|Europe
the Czech Republic|Prague|koruna|Czech|Europe
Croatia|Zagreb|euro|Croatian|Europe
Iceland|Reykjavik|krona|Icelandic|Europe
Scotland|Edinburgh|pound|English|Europe"""
ANIMALS = """\
dog|barks|meat and bones|puppy|in homes
cat|meows|mice and fish|kitten|in homes
cow|moos|grass|calf|on farms
horse|neighs|grass and oats|foal|on farms
sheep|bleats|grass|lamb|on farms
pig|grunts|roots and grain|piglet|on farms
lion|roars|antelopes|cub|in the savanna
bear|growls|berries and fish|cub|in forests
wolf|howls|deer|pup|in forests
duck|quacks|water plants|duckling|on ponds
frog|croaks|insects|tadpole|in ponds
owl|hoots|mice|owlet|in old trees
elephant|trumpets|leaves and bark|calf|in the savanna
bee|buzzes|nectar|larva|in hives
goose|honks|grass|gosling|by lakes
monkey|chatters|fruit|infant|in the jungle
snake|hisses|small rodents|snakelet|in deserts
mouse|squeaks|seeds|pup|in barns
penguin|squawks|fish|chick|in Antarctica
whale|sings|krill|calf|in the ocean
camel|groans|thorny plants|calf|in deserts
kangaroo|clicks|grass|joey|in Australia
panda|bleats|bamboo|cub|in mountain forests
eagle|screams|rabbits|eaglet|on cliffs"""
FOODS = """\
banana|yellow|fruit|potassium|tropical plantations
lemon|yellow|fruit|vitamin C|warm groves
carrot|orange|vegetable|vitamin A|loose soil
spinach|green|vegetable|iron|cool gardens
apple|red|fruit|fibre|orchards
tomato|red|fruit|lycopene|sunny gardens
blueberry|blue|fruit|antioxidants|acid soil
grape|purple|fruit|sugar|vineyards
potato|brown|vegetable|starch|cool fields
broccoli|green|vegetable|vitamin K|cool gardens
orange|orange|fruit|vitamin C|warm groves
cherry|red|fruit|melatonin|orchards
pea|green|vegetable|protein|trellises
onion|white|vegetable|sulfur compounds|dry fields
avocado|green|fruit|healthy fats|tropical groves
pumpkin|orange|vegetable|vitamin A|warm fields
rice|white|grain|starch|flooded fields
oat|beige|grain|fibre|cool fields
almond|brown|nut|vitamin E|dry orchards
walnut|brown|nut|omega-3 fats|orchards"""
DISHES = """\
pancakes|mix flour, eggs and milk, then fry thin rounds in butter|a frying pan
bread|knead flour, water, salt and yeast, let it rise, then bake it|an oven
soup|simmer vegetables in stock until they are soft|a large pot
pasta|boil it in salted water until it is firm to the bite|a pot
rice|rinse it, add twice as much water, cover and let it steam|a pot with a lid
coffee|pour hot water over ground roasted beans|a filter
tea|steep the leaves in hot water for three minutes|a teapot
omelette|beat eggs and let them set in a hot pan|a frying pan
salad|wash the leaves, cut the vegetables and add oil and vinegar|a bowl
pizza|spread sauce and cheese on dough and bake it very hot|a hot oven
cake|beat butter with sugar, fold in eggs and flour and bake|a cake tin
popcorn|heat the dried kernels in oil until they burst|a covered pot
yoghurt|warm milk with a culture and keep it warm over night|a jar
jam|cook fruit with sugar until it sets|a wide pot"""
SPORTS = """\
football|two teams of eleven players kick a ball into a goal|11
basketball|players throw a ball through a high hoop|5
tennis|players hit a ball over a net with rackets|1 or 2
baseball|a batter hits a thrown ball and runs around bases|9
volleyball|teams hit a ball over a high net with their hands|6
ice hockey|skaters shoot a puck into a goal with sticks|6
golf|players hit a small ball into holes with clubs|1
chess|two players move pieces to checkmate the king|1
rugby|teams carry an oval ball over a line|15
cricket|a bowler throws at a wicket that a batsman defends|11
swimming|racers cross a pool by moving arms and legs|1
boxing|two fighters in a ring punch with gloves|1
table tennis|players hit a light ball over a small net on a table|1 or 2
skiing|athletes slide down snow on two boards|1"""
PEOPLE = """\
Albert Einstein|the theory of relativity|physics
Isaac Newton|the laws of motion and gravity|physics
Charles Darwin|the theory of evolution by natural selection|biology
Marie Curie|radium and polonium|chemistry
William Shakespeare|Hamlet and Romeo and Juliet|literature
Leonardo da Vinci|the Mona Lisa|painting
Ludwig van Beethoven|the Ninth Symphony|music
Alexander Graham Bell|the telephone|engineering
Alexander Fleming|penicillin|medicine
Guido van Rossum|the Python programming language|computing
Vincent van Gogh|The Starry Night|painting
Jane Austen|Pride and Prejudice|literature
Galileo Galilei|the moons of Jupiter|astronomy
Johannes Gutenberg|the movable-type printing press|engineering
Ada Lovelace|the first published computer program|computing
Tim Berners-Lee|the World Wide Web|computing
Linus Torvalds|the Linux kernel|computing
Louis Pasteur|pasteurization|medicine"""
SCIENCE = """\
water|H2O|a liquid that covers most of the Earth and boils at 100 degrees Celsius
oxygen|O|a gas in the air that animals need to breathe
gold|Au|a heavy yellow metal used for jewellery
iron|Fe|a metal that rusts and is made into steel
carbon|C|the element of coal and diamonds
hydrogen|H|the lightest gas, which burns to water
salt|NaCl|white crystals that season food
silver|Ag|a shiny white metal that conducts very well
helium|He|a light gas that fills balloons
copper|Cu|a reddish metal used for electric wires
mercury|Hg|a metal that is liquid at room temperature
sodium|Na|a soft metal that reacts with water
nitrogen|N|the gas that makes up most of the air
lead|Pb|a soft, heavy, poisonous metal"""
SPACE = """\
Mercury|the closest planet to the Sun
Venus|the hottest planet, wrapped in thick clouds
Earth|the only planet known to have life
Mars|the red planet, with dust storms and polar ice
Jupiter|the largest planet, with a great red storm
Saturn|the planet with wide bright rings
Uranus|the planet that spins on its side
Neptune|the most distant planet, blue and windy
the Moon|the body that orbits the Earth and causes tides
the Sun|the star at the centre of our solar system"""
EVERYDAY = """\
reset a forgotten password|Click 'Forgot password' on the login page and follow the link in the e-mail.
return an item to the shop|Goods may be sent back within thirty days with the receipt for a full refund.
fix a flat bicycle tyre|Take off the wheel, patch the inner tube and pump it up again.
remove a coffee stain|Dab the spot with cold water and a little vinegar, then wash the cloth.
open a bank account|Bring your passport and proof of address to a branch and sign the form.
get to the airport|The express train leaves the central station every fifteen minutes and takes half an hour.
fall asleep faster|Keep the bedroom dark and cool and put screens away an hour before bed.
water a cactus|Give it very little water, only when the soil is fully dry.
change a light bulb|Switch off the power, let it cool, unscrew it and put in a new one.
treat a cold|Rest, drink a lot of fluids and take something for the fever.
learn a language|Practise a little every day, listen to native speakers and repeat new words.
save electricity at home|Turn off devices that are not used and choose efficient lamps.
cancel my subscription|You can end your plan at any time in the billing settings of your account.
track my parcel|Enter the shipment number on the carrier's website to see where the package is.
boil an egg|Put it into bubbling water: six minutes for a soft yolk, ten for a hard one.
speed up a slow computer|Close unused programs, free disk space and add memory."""
