/* Says how fresh the page is: live, stale, or reconnecting; reloads once when values stay away although the API answers. */
(function () {
    "use strict";
    const LATE_SECONDS = 3.5;
    const RELOAD_SECONDS = 60;
    let last = null;
    let began = performance.now();
    let error = null;
    let probing = false;
    let reachable = true;

    function tick(data) {
        if (data) {
            last = performance.now();
            error = data.error;
            reachable = true;
            draw();
        }
        return window.dash_clientside.no_update;
    }

    async function probe() {
        probing = true;
        try {
            const answer = await fetch("/api/v1/snapshot", { cache: "no-store" });
            reachable = answer.ok || answer.status < 502;
        } catch (_) {
            reachable = false;
        }
        probing = false;
    }

    function say(badge, state, words) {
        if (badge.dataset.state !== state) badge.dataset.state = state;
        if (badge.textContent !== words) badge.textContent = words;
    }

    function draw() {
        const badge = document.getElementById("live-badge");
        if (!badge) return;
        const age = (performance.now() - (last === null ? began : last)) / 1000;
        if (age <= LATE_SECONDS) {
            if (last === null) say(badge, "connecting", "connecting");
            else if (error) say(badge, "stale", "stale");
            else say(badge, "live", "live");
            return;
        }
        if (!probing && Math.round(age) % 4 === 0) probe();
        if (!reachable) say(badge, "away", "reconnecting");
        else say(badge, "stale", "stale, " + Math.round(age) + " s");
        if (reachable && age > RELOAD_SECONDS && document.visibilityState === "visible") {
            window.location.reload();
        }
    }

    window.dash_clientside = Object.assign({}, window.dash_clientside);
    window.dash_clientside.observatory = Object.assign(window.dash_clientside.observatory || {}, { tick: tick });
    window.setInterval(draw, 1000);
})();
