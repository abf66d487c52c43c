# The gate: exits with 0 only if sum.sh works.
result=$(sh sum.sh 2 3)
[ "$result" = 5 ] || { echo "sum.sh 2 3 printed '$result', expected 5"; exit 1; }
