//! A blocking client of the API server.
//!
//! A request is sent once, unless the server is too busy to process it (429). If a write were repeated, the response
//! would not tell whether the first one was done, which compare-and-swap needs. (The client library's retries are
//! turned off.)

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use kube::api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Client, Error};
use podwire_block_ipam::store::StoreError;
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// The time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The page size of lists. A full block of 64 addresses has 20 KB.
const PAGE: u32 = 500;

/// How often a list is started, if its continue token expires.
const MAX_LISTS: usize = 3;

/// Why a request failed, with the server's message.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The object does not exist (404).
    Missing(String),
    /// The object exists already, or has another version (409). **Nothing was done.**
    Conflict(String),
    /// The version is not available any more (410).
    Expired(String),
    /// Any other error. A write may have been done.
    Other(String),
}

impl Refusal {
    pub(crate) fn message(self) -> String {
        match self {
            Refusal::Missing(message)
            | Refusal::Conflict(message)
            | Refusal::Expired(message)
            | Refusal::Other(message) => message,
        }
    }
}

/// A client with its runtime.
pub(crate) struct Server {
    /// The server's URL.
    pub(crate) name: String,
    runtime: Runtime,
    client: Client,
}

/// A request, if it is valid.
type Sendable = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    /// `null` in an empty list of metadata.
    items: Option<Vec<Value>>,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

impl Server {
    /// A client for a kubeconfig, or for the service account of the pod. It does not connect yet.
    pub(crate) fn new(kubeconfig: Option<&Path>) -> Result<Server, String> {
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let (name, client) = runtime.block_on(async {
            let mut config = podwire_kubernetes::ClientOptions::from_kubeconfig(kubeconfig.map(Into::into))
                .config()
                .await
                .map_err(|error| error.to_string())?;
            config.default_retry = false;
            let name = config.cluster_url.to_string();
            let client = Client::try_from(config).map_err(|error| podwire_kubernetes::describe(&error))?;
            Ok::<_, String>((name.trim_end_matches('/').to_owned(), client))
        })?;
        Ok(Server { name, runtime, client })
    }

    /// The URL, the runtime and the client.
    pub(crate) fn into_parts(self) -> (String, Runtime, Client) {
        (self.name, self.runtime, self.client)
    }

    /// The error of an operation on a key.
    pub(crate) fn unavailable(&self, verb: &'static str, key: &str, why: String) -> StoreError {
        StoreError::Unavailable { store: self.name.clone(), verb, key: key.into(), why }
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Blocks on a future without a time limit.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// The plural names of a group's resources.
    pub(crate) fn resources(&self, group: &str) -> Result<Vec<String>, Refusal> {
        let list = self.request(|| self.client.list_api_group_resources(group))?;
        Ok(list.resources.into_iter().map(|resource| resource.name).collect())
    }

    pub(crate) fn get(&self, path: &str, name: &str) -> Result<Value, Refusal> {
        self.request(|| self.send(Request::new(path).get(name, &GetParams::default())))
    }

    pub(crate) fn post(&self, path: &str, object: &Value) -> Result<Value, Refusal> {
        let bytes = object.to_string().into_bytes();
        self.request(|| self.send(Request::new(path).create(&PostParams::default(), bytes.clone())))
    }

    pub(crate) fn put(&self, path: &str, name: &str, object: &Value) -> Result<Value, Refusal> {
        let bytes = object.to_string().into_bytes();
        self.request(|| self.send(Request::new(path).replace(name, &PostParams::default(), bytes.clone())))
    }

    /// Applies a strategic merge patch to an object's `status` subresource.
    pub(crate) fn patch_status(&self, path: &str, name: &str, patch: &Value) -> Result<Value, Refusal> {
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        self.request(|| self.send(Request::new(path).patch_subresource("status", name, &params, &patch)))
    }

    /// Applies a JSON patch to an object's `status` subresource. Its tests fail with [`Refusal::Other`].
    pub(crate) fn patch_status_if(&self, path: &str, name: &str, patch: &Value) -> Result<Value, Refusal> {
        let operations =
            serde_json::from_value(patch.clone()).map_err(|error| Refusal::Other(error.to_string()))?;
        let (params, patch) = (PatchParams::default(), Patch::Json::<()>(operations));
        self.request(|| self.send(Request::new(path).patch_subresource("status", name, &params, &patch)))
    }

    /// Deletes an object, if it has not changed since it was read.
    pub(crate) fn delete(&self, path: &str, object: &Value) -> Result<(), Refusal> {
        let text = |field: &str| object["metadata"][field].as_str().map(String::from);
        let state = Preconditions { uid: text("uid"), resource_version: text("resourceVersion") };
        let params = DeleteParams { preconditions: Some(state), ..DeleteParams::default() };
        let name = text("name").unwrap_or_default();
        self.request(|| self.send::<Value>(Request::new(path).delete(&name, &params))).map(drop)
    }

    /// Lists all objects consistently, in pages.
    pub(crate) fn list(&self, path: &str, selector: Option<&str>) -> Result<Vec<Value>, Refusal> {
        let params = ListParams { label_selector: selector.map(String::from), ..ListParams::default() };
        self.list_by(params, |params| Request::new(path).list(params))
    }

    /// Lists the metadata of all objects (PartialObjectMetadata).
    pub(crate) fn list_metadata(&self, path: &str) -> Result<Vec<Value>, Refusal> {
        self.list_by(ListParams::default(), |params| Request::new(path).list_metadata(params))
    }

    fn list_by(
        &self,
        params: ListParams,
        request: impl Fn(&ListParams) -> Sendable,
    ) -> Result<Vec<Value>, Refusal> {
        let mut left = MAX_LISTS;
        loop {
            left -= 1;
            match self.list_once(params.clone(), &request) {
                Err(Refusal::Expired(_)) if left > 0 => {}
                list => return list,
            }
        }
    }

    fn list_once(
        &self,
        mut params: ListParams,
        request: &impl Fn(&ListParams) -> Sendable,
    ) -> Result<Vec<Value>, Refusal> {
        let mut all = Vec::new();
        params.limit = Some(PAGE);
        loop {
            let page: Page = self.request(|| self.send(request(&params)))?;
            all.extend(page.items.into_iter().flatten());
            params.continue_token = page.metadata.next.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(all);
            }
        }
    }

    async fn send<T: DeserializeOwned>(&self, request: Sendable) -> kube::Result<T> {
        self.client.request(request.map_err(Error::BuildRequest)?).await
    }

    /// Sends a request, and repeats it while the server is too busy to process it (429).
    fn request<T, A>(&self, request: impl Fn() -> A) -> Result<T, Refusal>
    where
        A: Future<Output = kube::Result<T>>,
    {
        let response = async {
            loop {
                match request().await {
                    Err(Error::Api(status)) if status.code == 429 => {
                        let pause = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                        tokio::time::sleep(Duration::from_secs(pause.max(1).into())).await;
                    }
                    response => return response,
                }
            }
        };
        match self.runtime.block_on(async { tokio::time::timeout(REQUEST_TIMEOUT, response).await }) {
            Ok(response) => response.map_err(refusal),
            Err(_) => Err(Refusal::Other(format!("no response within {} s", REQUEST_TIMEOUT.as_secs()))),
        }
    }
}

fn refusal(error: Error) -> Refusal {
    let message = podwire_kubernetes::describe(&error);
    match error {
        Error::Api(status) => match status.code {
            404 => Refusal::Missing(message),
            409 => Refusal::Conflict(message),
            410 => Refusal::Expired(message),
            _ => Refusal::Other(message),
        },
        _ => Refusal::Other(message),
    }
}
