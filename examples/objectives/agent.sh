# Stands in for a coding agent: creates the file of the first open item, then ticks the item.
cat > /dev/null
file=$(sed -n 's/^- \[ \] //p' plan.md | head -n 1)
[ -n "$file" ] || exit 0
echo "content" > "$file"
sed "s/^- \[ \] $file/- [x] $file/" plan.md > plan.tmp && mv plan.tmp plan.md
