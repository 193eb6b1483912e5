"""Words that people tell a thing by and ask for it by. Everyday English; other languages are matched word by word.

It is a small thesaurus, not a model: each group is words that may stand for each other in a question and its answer,
and each kind has the words that are answers to "which …".
"""

from __future__ import annotations

# Each line is one group. A word may be in several.
_GROUPS = """
mother mum mom mummy mama parent
father dad daddy papa parent
grandmother grandma granny nana
grandfather grandpa granddad grandad
brother sibling
sister sibling
child kid children son daughter baby toddler
wife husband spouse partner
friend mate buddy pal
aunt uncle
person people somebody someone man woman guy
landlord landlady owner own
tenant renter lodger
neighbour neighbor
childhood grew raised youth
commute office work
boss manager supervisor lead chief head
colleague coworker workmate teammate
customer client buyer
employee staff worker
job work profession occupation employed career works living
office work workplace
teacher tutor instructor teach lesson
doctor physician gp medic care
dentist tooth teeth dental
vet veterinarian animal
nurse carer care
lawyer attorney solicitor
owner own belong
company firm business employer vendor supplier contractor
school college university class
lesson class course training workshop
homework assignment essay thesis paper
exam test
car vehicle automobile auto
bike bicycle cycle
lorry truck van
train rail railway
boat ship ferry vessel sail
plane flight fly airplane aircraft airline
bus coach tram
trip travel journey holiday vacation travelling tour
holiday vacation leave
leave depart departure go start sail
arrive arrival come land
ticket seat booking reservation
book reserve booking reservation
hotel hostel inn guesthouse accommodation
luggage suitcase bag baggage
road street lane avenue
address street live lives location located
city town village place
live lives moved home resident reside dwell
house home flat apartment
flat apartment home
upstairs above upper
downstairs below beneath
room chamber
bathroom bath shower toilet
kitchen cooker
sofa couch settee
fridge refrigerator freezer
stove oven cooker
heating boiler heater radiator
wardrobe closet cupboard
garden yard lawn
basement cellar
attic loft
door entrance gate
front entrance
garage carport
rubbish trash garbage waste bin
carpet rug
curtain blind
key lock
spare extra additional
hide hid hidden kept
keep kept store stored stow hang lie put
repair fix fixed mend mended repaired
service serviced maintain maintained maintenance
build built construct construction
clean wash tidy
break broke broken damage damaged
price cost costs paid pay worth expensive charge fee euros dollars pounds
cost expense expenses price spend spent
fee charge price
salary wage income earn pay
rent lease
bill invoice billing
buy bought purchase purchased order ordered get got
sell sold sale
refund refundable back
money cash
cheap inexpensive
discount reduction rebate
insurance insured cover covers policy
guarantee warranty
bank account
budget limit
amount sum much
present gift
party celebration
birthday born birth
born birth birthplace birthday native
anniversary wedding
wedding marry married marriage bride
died death dead
play performance show theatre concert
practice rehearsal rehearse practise training
sing choir song
team group crew
sport exercise training
run running jog jogging
hike hiking walk walking trek
walk stroll
game match
meeting meet appointment call
appointment slot visit
lunch eat meal
dinner supper eat meal
breakfast eat meal
food eat meal dish feed diet
feed food eat
drink drinks beverage
recipe dish cook
allergic allergy intolerant intolerance
medicine medication drug tablet pill dose remedy prescription
ill sick illness disease unwell
hospital clinic
pain ache hurt
physiotherapist physio
glasses spectacles
clothes clothing wear
shoe shoes boots sneakers trainers
coat jacket
big large huge bigger larger
small little tiny
size measure measured measurement
long length duration takes take lasts last
high height tall
wide width
heavy weight weigh weighs
deep depth
fast quick speed
often frequent frequency every
begin start starts begins starting commence
end finish finished ends expire expires
stop quit gave cancel
cancel cancelled drop dropped
expire expires valid ends
deadline due handed until
due deadline must
submit hand handed deliver turn
deliver delivery arrive shipped
date day
night nightly evening
day daily
year yearly annual
hour hours time
time clock oclock
morning early
late delayed delay
choose chose chosen pick picked decide decided select selected settle settled agree agreed opt
decide decided decision agree agreed
agreement contract deal
agree agreed consent
approve approves approval sign signs allow permit confirm
permit permission allow
responsible charge handles handle owns owner
handle handles deal takes care manage manages
check inspection inspect inspected examine test
review reviews reviewing look
write written wrote author
told mention mentioned
name named called call
nickname called
phone telephone mobile number call
number digits code
code pin password digits
password passphrase login credentials
wifi wireless wlan network internet
network wifi
computer laptop pc notebook
laptop notebook
server machine host
host hostname machine
listen listens port
address ip url host
port listens
database db postgres mysql
folder directory path
file document
log logs
job task cron
task todo job
bug error defect issue problem
problem trouble issue
release deploy deployment version
version release
branch fork
change patch commit request pull
merge commit
repository repo
website site page
email mail
message text
mail post letter
parcel package
picture photo image
film movie
music song album
book novel
story tale
newspaper paper
language tongue
certificate cert
photo picture
dog puppy
cat kitten
pet animal
horse pony
plant flower
tree wood
wood timber
rain weather
hot warm
cold chilly
shop store
shopping groceries
market shop
restaurant cafe
pub bar
fast rapid
look looks see
love prefer favourite favorite enjoy
hate dislike
want wants wish need
need needs must want require requires
use uses used using
help assist support
learn study studying
change changed switch
move moved relocate relocated
close closed shut
"""

# What "which …" asks for: words that are answers. A word after the colon answers a question with the one before it.
_KINDS = """
colour color: red green blue yellow black white grey gray brown orange purple pink beige turquoise violet navy cream
currency: euro euros dollar dollars pound pounds franc francs yen krona kronor rupee rupees pesos yuan
day weekday: monday mondays tuesday tuesdays wednesday wednesdays thursday thursdays friday fridays saturday saturdays sunday sundays
month: january february march april may june july august september october november december
season: spring summer autumn fall winter
language: english german french spanish italian portuguese dutch swedish norwegian danish polish russian greek turkish arabic hindi chinese mandarin japanese korean python java javascript typescript rust go ruby swift kotlin scala php perl haskell
nut nuts food: hazelnut hazelnuts walnut walnuts almond almonds peanut peanuts cashew cashews pistachio
fruit food: apple apples pear pears banana bananas cherry cherries plum plums grape grapes strawberry strawberries
food: bread milk egg eggs fish meat shellfish cheese gluten wheat soy honey rice pasta
drink: tea coffee juice wine beer water cocoa milk
pet animal: dog cat hamster rabbit parrot budgie tortoise goldfish pony
meat: beef pork lamb chicken turkey
metal: iron steel copper silver gold aluminium brass tin zinc
material: wood oak pine steel stone marble wool cotton linen leather glass plastic concrete
instrument: piano violin cello guitar flute harp drums trumpet clarinet
sport: football tennis swimming running climbing cycling rowing hockey basketball badminton
editor: vim emacs vscode
database: postgres postgresql mysql sqlite mongodb redis mariadb oracle
relative family: mother father brother sister aunt uncle cousin grandmother grandfather son daughter niece nephew
"""  # noqa: E501 -- one kind a line

# What is said in several words, and the one word it stands for.
_PHRASES = """
neighbour: next door
care: look after, looks after, looked after, looking after, take care of, takes care of
approve: sign off, signs off, signed off
submit: hand in, hands in, handed in, turn in, turned in
stop: give up, gives up, gave up, given up
childhood: grow up, grew up, grown up
refund: get back, gets back, money back
cancel: call off, called off
postpone: put off, puts off
visit: drop by, come by, comes by
collect: pick up, picks up, picked up
install: set up, sets up
discover: find out, found out
review: look over, looks over, looked over, look through, go over
replace: stand in for, stands in for, fill in for, fills in for
handle: take over, takes over, took over, in charge of, deal with, deals with
"""

# Forms of a word that no ending explains, and what names are asked for by, in some languages.
_FORMS = """
name: called heisst heisse hiess llama appelle
begin: began begun, bring: brought, build: built, buy: bought, child: children, choose: chose chosen, come: came
drink: drank drunk, drive: drove driven, eat: ate eaten, fall: fell fallen, feed: fed, find: found
fly: flew flown flight, foot: feet, get: got gotten, give: gave given, go: went gone goes, grow: grew grown, hang: hung
hide: hid hidden, hold: held, keep: kept, know: knew known, lead: led, leave: left leaves, lose: lost, make: made
meet: met, mouse: mice, pay: paid, person: people, ride: rode ridden, run: ran, sell: sold, send: sent, sing: sang sung
sit: sat, sleep: slept, speak: spoke spoken, spend: spent, swim: swam swum, take: took taken, teach: taught
think: thought, tooth: teeth, wear: wore worn, win: won, write: wrote written
"""


def forms() -> dict[str, str]:
    """Forms of words, and the words."""
    pairs = (each.partition(":") for each in _FORMS.strip().replace("\n", ",").split(","))
    return {form: word.strip() for word, _, several in pairs for form in several.split()}


def phrases() -> dict[str, str]:
    """Words that belong together, and the word they stand for."""
    lines = (line.partition(":") for line in _PHRASES.strip().splitlines())
    return {said.strip(): word for word, _, several in lines for said in several.split(",")}


def groups() -> list[list[str]]:
    """Words that may stand for each other."""
    return [line.split() for line in _GROUPS.strip().splitlines()]


def kinds() -> list[tuple[list[str], list[str]]]:
    """Words that ask for a kind, and the words of that kind."""
    asked_told = (line.partition(":") for line in _KINDS.strip().splitlines())
    return [(asked.split(), told.split()) for asked, _, told in asked_told]
