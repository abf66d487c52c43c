//! Conditions under which serde leaves a field out.

/// Returns whether a value is the default of its type, so that the field need not be written.
pub(crate) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
