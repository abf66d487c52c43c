//! Shows addresses of servers without their passwords.

use std::borrow::Cow;

/// Returns an address without the part before `@`, which may contain a password.
#[must_use]
pub fn without_password(text: &str) -> Cow<'_, str> {
    let Some((_, rest)) = text.rsplit_once('@') else {
        return text.into();
    };
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    match scheme.filter(|scheme| scheme.bytes().all(|byte| byte.is_ascii_alphabetic())) {
        Some(scheme) => format!("{scheme}://{rest}").into(),
        None => rest.to_owned().into(),
    }
}
