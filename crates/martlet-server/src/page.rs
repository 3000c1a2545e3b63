//! The web page, which is part of the program: hand-written files, sent as they are.

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../page/", $name)))),*]
    };
}

const INDEX: &str = "index.html";
const FILES: &[(&str, &str)] = files!(
    "index.html" "page.css" "icon.svg" "page.js" "client.js" "dom.js" "highlight.js" "markdown.js" "messages.js"
    "run.js" "settings.js" "sidebar.js" "state.js"
);

/// Nothing but these files runs in the page, whatever a model writes: no inline scripts, and no HTML from strings.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// The page itself.
pub async fn index(headers: HeaderMap) -> Response {
    serve(INDEX, &headers)
}

/// One of its files.
pub async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    serve(&name, &headers)
}

fn serve(name: &str, asked: &HeaderMap) -> Response {
    let Some((_, text)) = FILES.iter().find(|(known, _)| *known == name) else {
        return (StatusCode::NOT_FOUND, "the page has no such file\n").into_response();
    };
    let kind = match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/javascript; charset=utf-8",
    };
    let tag = format!("\"{}\"", &blake3::hash(text.as_bytes()).to_hex()[..16]);
    // Asked for anew each time, so that a newer program never runs half an older page.
    let about = [
        (header::CONTENT_TYPE, kind),
        (header::ETAG, tag.as_str()),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    match asked.get(header::IF_NONE_MATCH).is_some_and(|known| known == tag.as_str()) {
        true => (StatusCode::NOT_MODIFIED, about).into_response(),
        false => (about, *text).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_page_is_served_and_named_files_exist() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
        let mut there: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
        let mut served: Vec<_> = FILES.iter().map(|(name, _)| name.to_string()).collect();
        there.sort();
        served.sort();
        assert_eq!(served, there);
    }

    #[test]
    fn nothing_in_the_page_makes_html_of_text_or_calls_elsewhere() {
        for (name, text) in FILES {
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
                assert!(!text.contains(word), "{name} has {word}");
            }
            for line in text.lines().filter(|l| l.contains("src=") || l.contains("href=") || l.contains("import ")) {
                assert!(!line.contains("://"), "{name} loads from elsewhere: {line}");
            }
        }
    }

    #[test]
    fn a_known_file_is_not_sent_again() {
        let first = serve(INDEX, &HeaderMap::new());
        let known = HeaderMap::from_iter([(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone())]);
        assert_eq!((first.status(), serve(INDEX, &known).status()), (StatusCode::OK, StatusCode::NOT_MODIFIED));
        assert_eq!(serve("../Cargo.toml", &known).status(), StatusCode::NOT_FOUND);
    }
}
