/* Live values: applies what the server sends, and says how fresh the page is: live, stale, or reconnecting. */
(function () {
    "use strict";
    const LATE_SECONDS = 3.5;
    const PROBE_SECONDS = 4;
    const RELOAD_SECONDS = 60;
    const began = performance.now();
    let last = null;
    let probed = 0;
    let error = null;
    let reachable = true;
    let waiting = new Map(); // updates that came while the tab was hidden, the newest of each

    function dataOf(store) {
        const found = window.dash_component_api.getLayout(store);
        return found && found.props ? found.props.data : null;
    }

    function tick() {
        const batch = dataOf("batch");
        if (!batch) return;
        last = performance.now();
        error = batch.error;
        reachable = true;
        draw();
        if (JSON.stringify(batch.shown) === JSON.stringify(dataOf("shown"))) {
            batch.updates.forEach(function (update) { waiting.set(update[0] + " " + update[1], update); });
            if (!document.hidden) apply();
        } else {
            waiting.clear(); // meant for what was shown before
        }
    }

    /* Not a callback: Dash keeps every value that the input of a callback ever had. */
    function listen() {
        const signal = document.getElementById("live");
        if (!signal) return window.setTimeout(listen, 50);
        new MutationObserver(tick).observe(signal, { attributes: true });
        tick();
    }

    function apply() {
        const updates = Array.from(waiting.values());
        waiting.clear();
        updates.forEach(function (update) {
            const id = update[0], prop = update[1], value = update[2];
            if (!document.getElementById(id) && !window.dash_component_api.getLayout(id)) return;
            if (prop === "fresh") amend(id, value);
            else window.dash_clientside.set_props(id, { [prop]: value });
        });
    }

    /* New values for a figure; zoom and all else that is in its layout stays. */
    function amend(id, value) {
        const graph = window.dash_component_api.getLayout(id);
        if (!graph || !graph.props || !graph.props.figure) return;
        const layout = Object.assign({}, graph.props.figure.layout, value.layout);
        if (value.title) layout.yaxis = Object.assign({}, layout.yaxis, { title: value.title });
        window.dash_clientside.set_props(id, { figure: { data: value.data, layout: layout } });
    }

    document.addEventListener("visibilitychange", function () { if (!document.hidden) apply(); });

    async function probe() {
        probed = performance.now();
        try {
            const answer = await fetch("/api/v1/snapshot", { cache: "no-store" });
            reachable = answer.ok || answer.status < 502;
        } catch (_) {
            reachable = false;
        }
    }

    function say(badge, state, words) {
        if (badge.dataset.state !== state) badge.dataset.state = state;
        if (badge.textContent !== words) badge.textContent = words;
    }

    function draw() {
        const badge = document.getElementById("live-badge");
        if (!badge) return;
        const now = performance.now();
        const age = (now - (last === null ? began : last)) / 1000;
        if (age <= LATE_SECONDS) {
            if (last === null) say(badge, "connecting", "connecting");
            else say(badge, error ? "stale" : "live", error ? "stale" : "live");
            return;
        }
        if (now - probed > PROBE_SECONDS * 1000) probe();
        if (!reachable) say(badge, "away", "reconnecting");
        else say(badge, "stale", "stale, " + Math.round(age) + " s");
        // The connection gives up after ten attempts; a page that is looked at is worth a fresh one.
        if (reachable && age > RELOAD_SECONDS && !document.hidden) window.location.reload();
    }

    listen();
    window.setInterval(draw, 1000);
})();
