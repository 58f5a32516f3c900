//! Routes: from HTTP to jobs and back.

use std::io;

use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use shellctl::{
    DeleteQuery, ErrorBody, ErrorCode, ErrorEnvelope, Health, Invalid, JobId, JobList, ListQuery, TailQuery,
    TerminateRequest, limits, route,
};

use super::{Daemon, Refusal};
use crate::http::{Handler, Head, Request, Response};

/// What a path means, before the method is looked at.
#[derive(Debug, PartialEq, Eq)]
enum Route {
    Health,
    Run,
    Jobs,
    Job(JobId),
    Wait(JobId),
    Input(JobId),
    Tail(JobId),
    Terminate(JobId),
}

impl Route {
    fn parse(path: &str) -> Result<Self, Refusal> {
        match path {
            route::HEALTHZ => return Ok(Self::Health),
            route::RUN => return Ok(Self::Run),
            route::JOBS => return Ok(Self::Jobs),
            _ => {}
        }
        let unknown = || Refusal::new(ErrorCode::NotFound, format!("no route {path}"));
        let rest = path.strip_prefix(route::JOBS).and_then(|rest| rest.strip_prefix('/')).ok_or_else(unknown)?;
        let (id, rest) = rest.split_once('/').map_or((rest, None), |(id, rest)| (id, Some(rest)));
        let make = match rest {
            None => Self::Job,
            Some("wait") => Self::Wait,
            Some("input") => Self::Input,
            Some("log/tail") => Self::Tail,
            Some("terminate") => Self::Terminate,
            Some(_) => return Err(unknown()),
        };
        let id = JobId::new(percent_decode_str(id).decode_utf8_lossy());
        Ok(make(id.map_err(|bad| Refusal::new(ErrorCode::InvalidJobId, bad.to_string()))?))
    }

    fn methods(&self) -> &'static str {
        match self {
            Self::Health => "GET, HEAD",
            Self::Jobs | Self::Tail(_) => "GET",
            Self::Job(_) => "GET, DELETE",
            Self::Run | Self::Wait(_) | Self::Input(_) | Self::Terminate(_) => "POST",
        }
    }
}

/// Why a request gets no ordinary answer.
enum Failure {
    Refused(Refusal),
    /// The connection broke while the body came.
    Gone(io::Error),
}

impl<R: Into<Refusal>> From<R> for Failure {
    fn from(refusal: R) -> Self {
        Self::Refused(refusal.into())
    }
}

impl Handler for Daemon {
    fn handle(&self, request: &mut Request<'_>, response: Response<'_>) -> io::Result<()> {
        match self.answer(request) {
            Ok(body) => response.header("Content-Type", "application/json").send(&body),
            Err(Failure::Gone(error)) => Err(error),
            Err(Failure::Refused(refusal)) => {
                let mut response = response.status(refusal.code.http_status());
                match refusal.code {
                    ErrorCode::Unauthorized => response = response.header("WWW-Authenticate", "Bearer"),
                    ErrorCode::MethodNotAllowed => {
                        let allowed = Route::parse(request.path()).map_or("", |route| route.methods());
                        response = response.header("Allow", allowed);
                    }
                    _ => {}
                }
                response.send_json(&ErrorEnvelope { error: ErrorBody::new(refusal.code, refusal.message) })
            }
        }
    }
}

impl Daemon {
    fn answer(&self, request: &mut Request<'_>) -> Result<Vec<u8>, Failure> {
        let health = request.path() == route::HEALTHZ;
        if !health {
            self.authorize(request)?;
        }
        let found = Route::parse(request.path())?;
        if !found.methods().split(", ").any(|method| method == request.method()) {
            let message = format!("{} takes {}, not {}", request.path(), found.methods(), request.method());
            return Err(Refusal::new(ErrorCode::MethodNotAllowed, message).into());
        }
        match found {
            Route::Health => json(&Health::ok()),
            Route::Run => json(&self.run(&body(request)?)?),
            Route::Jobs => {
                let query = parse_query(request, |pairs| ListQuery::from_pairs(pairs))?;
                json(&JobList { jobs: self.table.list(query.status, query.limit) })
            }
            Route::Job(id) if request.method() == "DELETE" => {
                let query = parse_query(request, |pairs| DeleteQuery::from_pairs(pairs))?;
                json(&self.delete(&id, &query)?)
            }
            Route::Job(id) => json(&self.table.get(&id)?.view()),
            Route::Wait(id) => json(&self.wait(&id, &body(request)?)?),
            Route::Input(id) => json(&self.input(&id, &body(request)?)?),
            Route::Tail(id) => {
                let query = parse_query(request, |pairs| TailQuery::from_pairs(pairs))?;
                json(&self.table.get(&id)?.tail(query.output_limit)?)
            }
            Route::Terminate(id) => {
                let asked: TerminateRequest = optional_body(request)?;
                asked.validate()?;
                json(&self.terminate(&id, asked.grace())?)
            }
        }
    }

    fn authorize(&self, head: &Head) -> Result<(), Refusal> {
        let Some(token) = &self.token else { return Ok(()) };
        let given = head.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        if given.is_some_and(|given| token.matches(given.as_bytes())) {
            return Ok(());
        }
        Err(Refusal::new(
            ErrorCode::Unauthorized,
            "header 'Authorization: Bearer <token>' is missing or has another token",
        ))
    }
}

fn json(value: &impl serde::Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(value).map_err(|error| Refusal::internal("write the answer", &error).into())
}

fn bytes(request: &mut Request<'_>) -> Result<Vec<u8>, Failure> {
    request.body().read_to_limit(limits::MAX_BODY_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge => Refusal::new(ErrorCode::RequestTooLarge, error.to_string()).into(),
        io::ErrorKind::InvalidData => Refusal::new(ErrorCode::InvalidRequest, error.to_string()).into(),
        _ => Failure::Gone(error),
    })
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes)
        .map_err(|error| Refusal::new(ErrorCode::InvalidRequest, format!("request body: {error}")).into())
}

fn body<T: DeserializeOwned>(request: &mut Request<'_>) -> Result<T, Failure> {
    decode(&bytes(request)?)
}

/// A body that may be left out.
fn optional_body<T: DeserializeOwned + Default>(request: &mut Request<'_>) -> Result<T, Failure> {
    let bytes = bytes(request)?;
    if bytes.trim_ascii().is_empty() { Ok(T::default()) } else { decode(&bytes) }
}

fn parse_query<T>(head: &Head, parse: impl FnOnce(Vec<(&str, &str)>) -> Result<T, Invalid>) -> Result<T, Refusal> {
    let pairs: Vec<_> = head.query_pairs().collect();
    Ok(parse(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_routes_or_refused_with_the_right_code() {
        let id = || JobId::new("0123").unwrap();
        for (path, expected) in [
            ("/healthz", Ok(Route::Health)),
            ("/v1/jobs/run", Ok(Route::Run)),
            ("/v1/jobs", Ok(Route::Jobs)),
            ("/v1/jobs/0123", Ok(Route::Job(id()))),
            ("/v1/jobs/%30123/wait", Ok(Route::Wait(id()))),
            ("/v1/jobs/0123/input", Ok(Route::Input(id()))),
            ("/v1/jobs/0123/log/tail", Ok(Route::Tail(id()))),
            ("/v1/jobs/0123/terminate", Ok(Route::Terminate(id()))),
            ("/", Err(ErrorCode::NotFound)),
            ("/v1/jobsx", Err(ErrorCode::NotFound)),
            ("/v1/jobs/0123/what", Err(ErrorCode::NotFound)),
            ("/v1/jobs/0123/wait/", Err(ErrorCode::NotFound)),
            ("/v1/jobs/", Err(ErrorCode::InvalidJobId)),
            ("/v1/jobs/..", Err(ErrorCode::InvalidJobId)),
            ("/v1/jobs/..%2Fx/wait", Err(ErrorCode::InvalidJobId)),
            ("/v1/jobs/%ff", Err(ErrorCode::InvalidJobId)),
        ] {
            assert_eq!(Route::parse(path).map_err(|refusal| refusal.code), expected, "{path}");
        }
    }
}
