#!/usr/bin/env bash
# Writes the badge of the coverage as SVG: bash .github/badge.sh 87.3
set -euo pipefail
percent=${1:?the coverage in percent}
colour=$(awk -v p="$percent" 'BEGIN { print (p >= 90 ? "#4c1" : p >= 75 ? "#dfb317" : "#e05d44") }')
cat <<SVG
<svg xmlns="http://www.w3.org/2000/svg" width="112" height="20" role="img" aria-label="coverage: $percent %">
<rect width="61" height="20" fill="#555"/><rect x="61" width="51" height="20" fill="$colour"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11">
<text x="30.5" y="14">coverage</text><text x="86.5" y="14">$percent %</text></g>
</svg>
SVG
