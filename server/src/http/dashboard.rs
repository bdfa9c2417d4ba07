//! Static files of the dashboard, compiled into the binary.

pub(super) fn file(path: &str) -> Option<(&'static str, &'static str)> {
    Some(match path {
        "/" => ("text/html; charset=utf-8", include_str!("dashboard/index.html")),
        "/dashboard.css" => ("text/css; charset=utf-8", include_str!("dashboard/dashboard.css")),
        "/dashboard.js" => {
            ("text/javascript; charset=utf-8", include_str!("dashboard/dashboard.js"))
        }
        "/charts.js" => ("text/javascript; charset=utf-8", include_str!("dashboard/charts.js")),
        "/format.js" => ("text/javascript; charset=utf-8", include_str!("dashboard/format.js")),
        _ => return None,
    })
}
