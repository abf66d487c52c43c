# Stands in for a coding agent: makes a mistake first, and fixes it when the prompt has the output of the failed gate.
if grep -q "expected 5"; then
    echo 'echo $(($1 + $2))' > sum.sh
else
    echo 'echo $(($1 * $2))' > sum.sh
fi
echo "<promise>COMPLETE</promise>"
