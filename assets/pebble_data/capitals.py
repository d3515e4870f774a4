"""Countries and their capitals, asked in both directions."""

from __future__ import annotations

import random

from pebble_data.base import Sample, Split, phrased, turn

_TABLE = """
Afghanistan:Kabul Albania:Tirana Algeria:Algiers Andorra:Andorra_la_Vella Angola:Luanda
Antigua_and_Barbuda:Saint_John's Argentina:Buenos_Aires Armenia:Yerevan Australia:Canberra Austria:Vienna
Azerbaijan:Baku the_Bahamas:Nassau Bahrain:Manama Bangladesh:Dhaka Barbados:Bridgetown Belarus:Minsk
Belgium:Brussels Belize:Belmopan Benin:Porto-Novo Bhutan:Thimphu Bolivia:Sucre
Bosnia_and_Herzegovina:Sarajevo Botswana:Gaborone Brazil:Brasilia Brunei:Bandar_Seri_Begawan
Bulgaria:Sofia Burkina_Faso:Ouagadougou Burundi:Gitega Cambodia:Phnom_Penh Cameroon:Yaounde
Canada:Ottawa Cape_Verde:Praia the_Central_African_Republic:Bangui Chad:N'Djamena Chile:Santiago
China:Beijing Colombia:Bogota the_Comoros:Moroni Congo:Brazzaville Costa_Rica:San_Jose Croatia:Zagreb
Cuba:Havana Cyprus:Nicosia Czechia:Prague the_Democratic_Republic_of_the_Congo:Kinshasa
Denmark:Copenhagen Djibouti:Djibouti Dominica:Roseau the_Dominican_Republic:Santo_Domingo
East_Timor:Dili Ecuador:Quito Egypt:Cairo El_Salvador:San_Salvador Equatorial_Guinea:Malabo
Eritrea:Asmara Estonia:Tallinn Eswatini:Mbabane Ethiopia:Addis_Ababa Fiji:Suva Finland:Helsinki
France:Paris Gabon:Libreville the_Gambia:Banjul Georgia:Tbilisi Germany:Berlin Ghana:Accra Greece:Athens
Grenada:Saint_George's Guatemala:Guatemala_City Guinea:Conakry Guinea-Bissau:Bissau Guyana:Georgetown
Haiti:Port-au-Prince Honduras:Tegucigalpa Hungary:Budapest Iceland:Reykjavik India:New_Delhi
Indonesia:Jakarta Iran:Tehran Iraq:Baghdad Ireland:Dublin Israel:Jerusalem Italy:Rome
Ivory_Coast:Yamoussoukro Jamaica:Kingston Japan:Tokyo Jordan:Amman Kazakhstan:Astana Kenya:Nairobi
Kiribati:South_Tarawa Kuwait:Kuwait_City Kyrgyzstan:Bishkek Laos:Vientiane Latvia:Riga Lebanon:Beirut
Lesotho:Maseru Liberia:Monrovia Libya:Tripoli Liechtenstein:Vaduz Lithuania:Vilnius
Luxembourg:Luxembourg Madagascar:Antananarivo Malawi:Lilongwe Malaysia:Kuala_Lumpur Maldives:Male
Mali:Bamako Malta:Valletta the_Marshall_Islands:Majuro Mauritania:Nouakchott Mauritius:Port_Louis
Mexico:Mexico_City Micronesia:Palikir Moldova:Chisinau Monaco:Monaco Mongolia:Ulaanbaatar
Montenegro:Podgorica Morocco:Rabat Mozambique:Maputo Myanmar:Naypyidaw Namibia:Windhoek Nauru:Yaren
Nepal:Kathmandu the_Netherlands:Amsterdam New_Zealand:Wellington Nicaragua:Managua Niger:Niamey
Nigeria:Abuja North_Korea:Pyongyang North_Macedonia:Skopje Norway:Oslo Oman:Muscat Pakistan:Islamabad
Palau:Ngerulmud Panama:Panama_City Papua_New_Guinea:Port_Moresby Paraguay:Asuncion Peru:Lima
the_Philippines:Manila Poland:Warsaw Portugal:Lisbon Qatar:Doha Romania:Bucharest Russia:Moscow
Rwanda:Kigali Saint_Kitts_and_Nevis:Basseterre Saint_Lucia:Castries Saint_Vincent:Kingstown Samoa:Apia
San_Marino:San_Marino Sao_Tome_and_Principe:Sao_Tome Saudi_Arabia:Riyadh Senegal:Dakar
Serbia:Belgrade the_Seychelles:Victoria Sierra_Leone:Freetown Singapore:Singapore
Slovakia:Bratislava Slovenia:Ljubljana the_Solomon_Islands:Honiara Somalia:Mogadishu
South_Africa:Pretoria South_Korea:Seoul South_Sudan:Juba Spain:Madrid Sri_Lanka:Kotte Sudan:Khartoum
Suriname:Paramaribo Sweden:Stockholm Switzerland:Bern Syria:Damascus Taiwan:Taipei Tajikistan:Dushanbe
Tanzania:Dodoma Thailand:Bangkok Togo:Lome Tonga:Nuku'alofa Trinidad_and_Tobago:Port_of_Spain
Tunisia:Tunis Turkey:Ankara Turkmenistan:Ashgabat Tuvalu:Funafuti Uganda:Kampala Ukraine:Kyiv
the_United_Arab_Emirates:Abu_Dhabi the_United_Kingdom:London the_United_States:Washington
Uruguay:Montevideo Uzbekistan:Tashkent Vanuatu:Port_Vila Vatican_City:Vatican_City Venezuela:Caracas
Vietnam:Hanoi Yemen:Sanaa Zambia:Lusaka Zimbabwe:Harare
"""

CAPITALS: tuple[tuple[str, str], ...] = tuple(
    (country.replace("_", " "), city.replace("_", " "))
    for country, city in (entry.split(":") for entry in _TABLE.split())
)
CITIES: tuple[str, ...] = tuple(city for _, city in CAPITALS)

_OF_COUNTRY = (
    "What is the capital of {}?",
    "Name the capital of {}.",
    "Which city is the capital of {}?",
    "Tell me the capital of {}.",
    "capital of {}",
    "What's the capital city of {}?",
    "Do you know the capital of {}?",
)
_OF_CITY = (
    "Which country has the capital {}?",
    "{} is the capital of which country?",
    "Of which country is {} the capital?",
    "What country is {} the capital of?",
    "Name the country whose capital is {}.",
)


def capital(rng: random.Random, split: Split) -> Sample:
    while True:
        country, city = rng.choice(CAPITALS)
        asked = phrased(rng, split, country, _OF_COUNTRY)
        if asked:
            return turn("capital", asked.format(country), f"The capital of {country} is {city}.")


def country(rng: random.Random, split: Split) -> Sample:
    while True:
        land, city = rng.choice(CAPITALS)
        asked = phrased(rng, split, city, _OF_CITY)
        if asked:
            return turn("country", asked.format(city), f"{city} is the capital of {land}.")
