//! Who may come in: keys, the name under which the server is called, and where web pages come from.

use crate::error::ApiError;
use crate::options::Options;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use std::net::IpAddr;

/// Paths that need no key: they tell nothing, and do nothing.
const OPEN: [&str; 4] = ["/", "/health", "/ready", "/favicon.ico"];

/// Headers that tell a page's scripts something.
const EXPOSED: &str = "x-martlet-warning, x-request-id, retry-after";

/// Who asks: the digest of the key that was shown. Everybody is the same client where no key is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client(Option<[u8; 32]>);

impl Client {
    #[cfg(test)]
    pub fn of_key(key: &str) -> Client {
        Client(Some(*blake3::hash(key.as_bytes()).as_bytes()))
    }
}

/// The rules, made once.
pub struct Door {
    keys: Vec<blake3::Hash>,
    origins: Vec<String>,
    hosts: Vec<String>,
    /// Without keys a page of any site could reach the server under a name of its own (DNS rebinding).
    check_host: bool,
}

impl Door {
    pub fn new(options: &Options) -> Door {
        let origin = |text: &String| text.trim_end_matches('/').to_ascii_lowercase();
        Door {
            keys: options.api_keys.iter().map(|key| blake3::hash(key.as_bytes())).collect(),
            origins: options.allow_origins.iter().map(origin).collect(),
            hosts: options.allow_hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            check_host: options.host.is_loopback() || options.api_keys.is_empty(),
        }
    }

    /// Lets a request in, as whom, or says why not.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<Client, ApiError> {
        self.host(uri, headers)?;
        self.origin(headers)?;
        match self.keys.is_empty() || OPEN.contains(&uri.path()) || uri.path().starts_with("/page/") {
            true => Ok(Client::default()),
            false => self.key(headers),
        }
    }

    fn host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        if headers.get_all(header::HOST).iter().nth(1).is_some() {
            return Err(ApiError::bad_request("host_twice", "there is more than one Host header"));
        }
        if !self.check_host {
            return Ok(());
        }
        let said = headers.get(header::HOST).and_then(|h| h.to_str().ok()).or(uri.authority().map(|a| a.as_str()));
        let Some(said) = said else {
            return Err(ApiError::bad_request("host_missing", "the Host header is missing"));
        };
        let name = host_name(said).to_ascii_lowercase();
        let known = name == "localhost"
            || name.ends_with(".localhost")
            || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || self.hosts.contains(&name);
        match known {
            true => Ok(()),
            false => Err(forbidden(
                "host_not_allowed",
                format!("this server is not called \"{name}\": start it with --allow-host {name} if it should be"),
            )),
        }
    }

    fn origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let origin = String::from_utf8_lossy(origin.as_bytes()).to_ascii_lowercase();
        let own = headers.get(header::HOST).and_then(|h| h.to_str().ok()).map(str::to_ascii_lowercase);
        let same = own.is_some_and(|host| {
            origin.split_once("://").is_some_and(|(scheme, rest)| scheme.starts_with("http") && rest == host)
        });
        match same || self.allows(&origin) {
            true => Ok(()),
            false => Err(forbidden(
                "origin_not_allowed",
                format!(
                    "pages of {origin} may not use this server: start it with --allow-origin {origin} if they should"
                ),
            )),
        }
    }

    fn allows(&self, origin: &str) -> bool {
        self.origins.iter().any(|allowed| allowed == "*" || allowed == origin)
    }

    fn key(&self, headers: &HeaderMap) -> Result<Client, ApiError> {
        let text = |name: HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
        let bearer = text(header::AUTHORIZATION).and_then(|v| {
            let (scheme, key) = v.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let Some(key) = bearer.or(text(HeaderName::from_static("x-api-key"))) else {
            let message = "an API key is needed: send it as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"";
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, "api_key_missing", message));
        };
        // Digests are compared in constant time, each of them in any case.
        let digest = blake3::hash(key.as_bytes());
        let known = self.keys.iter().fold(false, |known, k| known | (*k == digest));
        match known {
            true => Ok(Client(Some(*digest.as_bytes()))),
            false => Err(ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", "the API key is not known here")),
        }
    }

    /// Whether the request is a browser's question what a page may do.
    pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
        method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Tells the browser that a page of an allowed origin may read the response.
    pub fn share(&self, request: &HeaderMap, response: &mut HeaderMap, preflight: bool) {
        let Some(origin) = request.get(header::ORIGIN) else { return };
        if !self.allows(&String::from_utf8_lossy(origin.as_bytes()).to_ascii_lowercase()) {
            return;
        }
        response.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        response.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        response.append(header::VARY, HeaderValue::from_static("origin"));
        if preflight {
            response
                .insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
            let asked = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
            response.insert(
                header::ACCESS_CONTROL_ALLOW_HEADERS,
                asked.unwrap_or(HeaderValue::from_static("authorization, content-type")),
            );
            response.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        }
    }
}

/// A Host header without its port.
fn host_name(host: &str) -> &str {
    match host.rfind(']') {
        Some(end) => &host[..=end],
        None => host.split(':').next().unwrap_or(host),
    }
}

fn forbidden(code: &'static str, message: String) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, code, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(options: Options) -> Door {
        Door::new(&options)
    }

    fn check(door: &Door, path: &str, headers: &[(&'static str, &str)]) -> Result<Client, &'static str> {
        let uri: Uri = path.parse().unwrap();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        door.check(&uri, &map).map_err(|e| e.code)
    }

    #[test]
    fn names_that_others_could_own_are_refused() {
        let door = door(Options { allow_hosts: vec!["Box.lan".into()], ..Options::default() });
        for host in ["localhost:8080", "127.0.0.1", "[::1]:8080", "a.localhost", "192.168.1.2:80", "box.lan:8080"] {
            assert!(check(&door, "/v1/models", &[("host", host)]).is_ok(), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:8080", "127.0.0.1.evil.example", ""] {
            assert_eq!(check(&door, "/v1/models", &[("host", host)]), Err("host_not_allowed"), "{host}");
        }
        assert_eq!(check(&door, "/health", &[]), Err("host_missing"));
        assert_eq!(check(&door, "/health", &[("host", "localhost"), ("host", "evil.example")]), Err("host_twice"));
    }

    #[test]
    fn pages_of_other_origins_are_refused_unless_named() {
        let closed = door(Options::default());
        let host = ("host", "127.0.0.1:8080");
        assert!(check(&closed, "/", &[host, ("origin", "http://127.0.0.1:8080")]).is_ok());
        assert_eq!(check(&closed, "/", &[host, ("origin", "http://evil.example")]), Err("origin_not_allowed"));
        assert_eq!(check(&closed, "/", &[host, ("origin", "null")]), Err("origin_not_allowed"));
        let open = door(Options { allow_origins: vec!["http://App.example/".into()], ..Options::default() });
        assert!(check(&open, "/", &[host, ("origin", "http://app.example")]).is_ok());
    }

    #[test]
    fn keys_are_asked_for_and_tell_clients_apart() {
        let door = door(Options { api_keys: vec!["one".into(), "two".into()], ..Options::default() });
        let host = ("host", "localhost");
        assert_eq!(check(&door, "/v1/models", &[host]), Err("api_key_missing"));
        assert_eq!(check(&door, "/v1/models", &[host, ("authorization", "Bearer three")]), Err("invalid_api_key"));
        assert_eq!(check(&door, "/v1/models", &[host, ("authorization", "one")]), Err("api_key_missing"));
        let one = check(&door, "/v1/models", &[host, ("authorization", "bearer one")]).unwrap();
        let same = check(&door, "/v1/models", &[host, ("x-api-key", "one")]).unwrap();
        let two = check(&door, "/v1/models", &[host, ("x-api-key", "two")]).unwrap();
        assert!(one == same && one != two);
        assert_eq!(one, Client::of_key("one"));
        assert!(check(&door, "/health", &[host]).is_ok());
    }

    #[test]
    fn beyond_loopback_a_key_is_enough() {
        let host = "0.0.0.0".parse().unwrap();
        let keyed = door(Options { host, api_keys: vec!["k".into()], ..Options::default() });
        assert!(check(&keyed, "/v1/models", &[("host", "box.example"), ("x-api-key", "k")]).is_ok());
        let keyless = door(Options { host, no_auth: true, ..Options::default() });
        assert_eq!(check(&keyless, "/v1/models", &[("host", "box.example")]), Err("host_not_allowed"));
    }
}
