# Stands in for a coding agent: writes one file per iteration and leaves a note for later sessions.
cat > /dev/null
if [ ! -e part-1.txt ]; then
    echo "content" > part-1.txt
    tachikoma note "part-1.txt is written" || true
else
    echo "content" > part-2.txt
    echo "<promise>COMPLETE</promise>"
fi
