# Stands in for a coding agent: reads the prompt, does one step, and claims completion after three steps.
cat > /dev/null
echo "line" >> log.txt
if [ "$(wc -l < log.txt)" -ge 3 ]; then
    echo "<promise>COMPLETE</promise>"
fi
