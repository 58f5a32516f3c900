//! `GET` and `POST /files`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::time::SystemTime;

use envd::UploadedFile;

use super::conditional::{Answer, Version};
use super::multipart::{self, Form};
use super::signature::{self, Claim, Operation, Refused};
use super::staging::Staged;
use super::{Caller, FileError, Files, Origin, content_type, metadata, open, path};
use crate::http::{Body, Head, Request, Response};
use crate::identity::Identity;

/// How much of a body is moved at once.
const COPY_BYTES: usize = 128 << 10;
/// How much of a file is looked at to tell its type.
const SNIFF_BYTES: usize = 512;
/// Most files in one form. Chosen: each holds a descriptor until all are there.
const MAX_PARTS: usize = 256;

impl Files {
    /// Serves `GET`, `HEAD` and `POST /files`, checking the access token or the signature first.
    ///
    /// # Errors
    /// When the client is gone, or its body breaks off.
    pub fn serve(
        &self,
        identity: &Identity,
        origin: Origin,
        request: &mut Request<'_>,
        response: Response<'_>,
    ) -> io::Result<()> {
        match request.method() {
            "GET" | "HEAD" => match self.open(identity, origin, request) {
                Ok(found) => found.send(request, response),
                Err(error) => refuse(response, &error),
            },
            "POST" => match self.upload(identity, origin, request) {
                Ok(written) => response.send_json(&written),
                // The client left or the connection broke: there is nobody to answer.
                Err(FileError::Body(error)) if error.kind() != io::ErrorKind::InvalidData => Err(error),
                Err(error) => refuse(response, &error),
            },
            _ => {
                let message = "only GET, HEAD and POST are served here";
                let body = serde_json::json!({ "code": 405, "message": message });
                response.status(405).header("Allow", "GET, HEAD, POST").send_json(&body)
            }
        }
    }

    /// Finds out for whom to act: who may, and as whom.
    fn admit(
        &self,
        identity: &Identity,
        origin: Origin,
        head: &Head,
        operation: Operation,
    ) -> Result<(Caller, Option<String>), FileError> {
        let mut query = BTreeMap::new();
        for (name, value) in head.query_pairs() {
            query.entry(name).or_insert(value);
        }
        let get = |name: &str| query.get(name).map(String::as_str);
        let username = get("username").filter(|name| !name.is_empty());
        if let Some(token) = &identity.access_token {
            let claim = Claim {
                header_token: head.header("x-access-token"),
                path: get("path").unwrap_or_default(),
                username: username.unwrap_or_default(),
                signature: get("signature"),
                expiration: get("signature_expiration"),
            };
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
            signature::check(token, operation, &claim, i64::try_from(now).unwrap_or(i64::MAX)).map_err(|refused| {
                match refused {
                    Refused::BadExpiration => FileError::BadRequest(refused.to_string()),
                    refused => FileError::Unauthorized(refused.to_string()),
                }
            })?;
        } else if origin == Origin::Loopback && username.is_some_and(|name| name != identity.default_user) {
            return Err(FileError::Unauthorized(
                "acting as another user takes an access token, and this sandbox has none".to_owned(),
            ));
        }
        Ok((self.caller(identity, username)?, get("path").map(str::to_owned)))
    }

    fn open(&self, identity: &Identity, origin: Origin, head: &Head) -> Result<Found, FileError> {
        let (caller, given) = self.admit(identity, origin, head, Operation::Read)?;
        if !accepts_identity(head.header("accept-encoding")) {
            return Err(FileError::NotAcceptable(
                "files are sent without content encoding, which accept-encoding excludes".to_owned(),
            ));
        }
        let absolute = caller.expand(given.as_deref().unwrap_or_default())?;
        let file = {
            let _acting = caller.act(&absolute)?;
            open::for_reading(&absolute, &caller.user).map_err(|errno| caller.failed(errno, "read", &absolute))?
        };
        Found::new(file, path::name(&absolute)).map_err(|error| caller.failed(error, "read", &absolute))
    }

    fn upload(
        &self,
        identity: &Identity,
        origin: Origin,
        request: &mut Request<'_>,
    ) -> Result<Vec<UploadedFile>, FileError> {
        let (caller, given) = self.admit(identity, origin, request, Operation::Write)?;
        if let Some(encoding) = request.header("content-encoding")
            && !encoding.trim().eq_ignore_ascii_case("identity")
        {
            return Err(FileError::Unsupported(format!(
                "content encoding '{encoding}' is not read here: send the bytes as they are"
            )));
        }
        let wanted = metadata::from_headers(request)?;
        let kind = request.header("content-type").unwrap_or_default().to_owned();
        let given = given.filter(|path| !path.is_empty());
        if let Some(boundary) = multipart::boundary(&kind) {
            return self.upload_form(&caller, given.as_deref(), &wanted, Form::new(request.body(), &boundary));
        }
        let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if essence != "application/octet-stream" {
            let message =
                format!("content type '{kind}' is not read here: send application/octet-stream or multipart/form-data");
            return Err(FileError::Unsupported(message));
        }
        let given = given.ok_or_else(|| {
            FileError::BadRequest("query parameter path is required with application/octet-stream".to_owned())
        })?;
        let absolute = caller.expand(&given)?;
        let _acting = caller.act(&absolute)?;
        let mut staged = self.begin(&caller, &absolute)?;
        check_space(request.body(), &staged, &absolute)?;
        copy(&caller, request.body(), &mut staged, &absolute)?;
        Ok(vec![commit(&caller, staged, absolute, &wanted)?])
    }

    /// Writes the files of a form; none gets its name before the whole form has arrived.
    fn upload_form(
        &self,
        caller: &Caller,
        given: Option<&str>,
        wanted: &BTreeMap<String, String>,
        mut form: Form<impl Read>,
    ) -> Result<Vec<UploadedFile>, FileError> {
        let mut arrived: Vec<(Staged, String)> = Vec::new();
        let _acting = caller.act(given.unwrap_or_default())?;
        while let Some(part) = form.next_part().map_err(FileError::Body)? {
            let shown: String = part.name.chars().take(64).collect();
            if part.name != "file" {
                return Err(FileError::BadRequest(format!(
                    "form field '{shown}' is not read here: files are sent as 'file'"
                )));
            }
            let name = given.or(part.file_name.as_deref()).filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| {
                FileError::BadRequest("a file of the form has no name, and there is no query parameter path".to_owned())
            })?;
            if arrived.len() == MAX_PARTS {
                return Err(FileError::BadRequest(format!("form has more than {MAX_PARTS} files")));
            }
            let absolute = caller.expand(name)?;
            let mut staged = self.begin(caller, &absolute)?;
            if arrived.iter().any(|(earlier, path)| *path == absolute || earlier.destination() == staged.destination())
            {
                return Err(FileError::BadRequest(format!("path '{absolute}' stands twice in one request")));
            }
            copy(caller, &mut form, &mut staged, &absolute)?;
            arrived.push((staged, absolute));
        }
        if arrived.is_empty() {
            return Err(FileError::BadRequest("form holds no file".to_owned()));
        }
        arrived.into_iter().map(|(staged, absolute)| commit(caller, staged, absolute, wanted)).collect()
    }

    fn begin(&self, caller: &Caller, absolute: &str) -> Result<Staged, FileError> {
        Staged::begin(absolute, &caller.user, &self.workshop).map_err(|error| caller.failed(error, "write", absolute))
    }
}

/// Refuses what cannot fit before it is received.
fn check_space(body: &Body<'_>, staged: &Staged, absolute: &str) -> Result<(), FileError> {
    let Ok(space) = rustix::fs::statvfs(path::parent(staged.destination())) else { return Ok(()) };
    if body.remaining().is_some_and(|length| length > space.f_bavail.saturating_mul(space.f_frsize)) {
        return Err(FileError::NoSpace(absolute.to_owned()));
    }
    Ok(())
}

fn copy(caller: &Caller, source: &mut impl Read, staged: &mut Staged, absolute: &str) -> Result<(), FileError> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let count = match source.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(FileError::Body(error)),
        };
        staged.write_all(&buffer[..count]).map_err(|error| caller.failed(error, "write", absolute))?;
    }
}

fn commit(
    caller: &Caller,
    staged: Staged,
    absolute: String,
    wanted: &BTreeMap<String, String>,
) -> Result<UploadedFile, FileError> {
    staged.commit(wanted).map_err(|error| caller.failed(error, "write", &absolute))?;
    let name = path::name(&absolute).to_owned();
    Ok(UploadedFile { path: absolute, name, file_type: "file".to_owned(), metadata: wanted.clone() })
}

fn refuse(response: Response<'_>, error: &FileError) -> io::Result<()> {
    let status = error.http_status();
    response.status(status).send_json(&serde_json::json!({ "code": status, "message": error.to_string() }))
}

/// Whether a client takes content as it is: it does unless it says that it does not (RFC 9110 §12.5.3).
fn accepts_identity(accept_encoding: Option<&str>) -> bool {
    let mut any = true;
    for item in accept_encoding.unwrap_or_default().split(',') {
        let (coding, parameters) = item.split_once(';').unwrap_or((item, ""));
        let weight = parameters.trim().strip_prefix("q=").and_then(|weight| weight.trim().parse::<f32>().ok());
        let refused = weight == Some(0.0);
        match coding.trim() {
            coding if coding.eq_ignore_ascii_case("identity") => return !refused,
            "*" => any = !refused,
            _ => {}
        }
    }
    any
}

/// A file that may be sent.
struct Found {
    file: File,
    name: String,
    version: Version,
    start: Vec<u8>,
}

impl Found {
    fn new(file: File, name: &str) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let version = Version {
            inode: metadata.ino(),
            size: metadata.size(),
            modified_ns: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
        };
        let mut start = vec![0; SNIFF_BYTES];
        let count = file.read_at(&mut start, 0)?;
        start.truncate(count);
        Ok(Self { file, name: name.to_owned(), version, start })
    }

    fn send(self, head: &Head, response: Response<'_>) -> io::Result<()> {
        let response = response
            .header("Content-Type", content_type::of(&self.name, &self.start))
            .header("Content-Disposition", &content_type::disposition(&self.name))
            .header("X-Content-Type-Options", "nosniff")
            .header("Vary", "Accept-Encoding");
        let size = self.version.size;
        if size == 0 && !self.start.is_empty() {
            // Files of /proc and /sys say nothing about their size.
            return self.stream(response);
        }
        let response = response
            .header("ETag", &self.version.etag())
            .header("Last-Modified", &self.version.last_modified())
            .header("Accept-Ranges", "bytes");
        let (response, start, end) = match self.version.answer(head) {
            Answer::Whole => (response, 0, size),
            Answer::Part { start, end } => {
                let range = format!("bytes {start}-{}/{size}", end - 1);
                (response.status(206).header("Content-Range", &range), start, end)
            }
            Answer::NotModified => return response.status(304).send(b""),
            Answer::PreconditionFailed => return response.status(412).send(b""),
            Answer::OutOfRange => {
                return response.status(416).header("Content-Range", &format!("bytes */{size}")).send(b"");
            }
        };
        let mut body = response.fixed(end - start)?;
        body.send_file(self.file.as_fd(), start, end - start)?;
        body.finish()
    }

    fn stream(mut self, response: Response<'_>) -> io::Result<()> {
        let mut body = response.stream()?;
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            match self.file.read(&mut buffer)? {
                0 => return body.finish(),
                count => body.write(&buffer[..count], None)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::accepts_identity;

    #[test]
    fn clients_take_plain_content_unless_they_say_otherwise() {
        for accepted in [
            None,
            Some(""),
            Some("gzip, br"),
            Some("gzip;q=0"),
            Some("identity"),
            Some("*;q=0, identity;q=0.5"),
            Some("*"),
        ] {
            assert!(accepts_identity(accepted), "{accepted:?}");
        }
        for refused in ["identity;q=0", "gzip, identity; q=0.0", "*;q=0", "gzip, *;q=0"] {
            assert!(!accepts_identity(Some(refused)), "{refused}");
        }
    }
}
