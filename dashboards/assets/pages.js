/* What the pages do in the browser alone: addresses, dialogs, words. Named by the clientside callbacks. */
(function () {
    "use strict";
    const nothing = function () { return window.dash_clientside.no_update; };

    /* Marks the link of the page that is shown, for eyes and for screen readers, and names the window. */
    function here(path) {
        document.querySelectorAll(".nav-link").forEach(function (link) {
            const current = link.getAttribute("href") === path;
            if (current) link.setAttribute("aria-current", "page");
            else link.removeAttribute("aria-current");
            if (current) document.title = link.textContent + " – Media Observatory";
        });
        return nothing();
    }

    function openDialog(clicks) { return clicks ? true : nothing(); }

    function closeDialog(clicks) { return clicks ? false : nothing(); }

    function askRemove(clicks, name) {
        if (!clicks) return [nothing(), nothing(), nothing()];
        return [true, "Frames of " + name + " that are in flight are finished and its outputs closed; then it is gone.", null];
    }

    /* The address of a node on the topology page; unchanged when it is shown already. */
    function showNode(value, search) {
        if (!value) return nothing();
        const wanted = value === "all nodes" ? "" : "?node=" + encodeURIComponent(value);
        return wanted === (search || "") || (!wanted && !/node=/.test(search || "")) ? nothing() : wanted;
    }

    /* The cell of the cost matrix that is pointed at, in words. */
    function costWords(hover, click, words) {
        const event = hover || click;
        if (!event || !event.points || !event.points.length || !words) return nothing();
        const cell = event.points[0];
        const said = typeof cell.customdata === "string" ? cell.customdata : words[cell.z];
        return "From " + cell.y + " to " + cell.x + ": " + said + ".";
    }

    function findFrame(clicks, a, b, c, stream, pts, base, epoch) {
        if (!String(pts || "").trim()) return nothing();
        const query = new URLSearchParams();
        if (stream) query.set("stream", stream);
        query.set("pts", String(pts).trim());
        if (String(base || "").trim()) query.set("time_base", String(base).trim());
        if (String(epoch || "").trim()) query.set("epoch", String(epoch).trim());
        return "?" + query.toString();
    }

    /* The shareable address of the frame that is shown. */
    function addressOf() { return window.location.href; }

    function openFrame(rows) {
        return rows && rows.length && rows[0].search ? rows[0].search : nothing();
    }

    window.dash_clientside = Object.assign({}, window.dash_clientside);
    window.dash_clientside.observatory = Object.assign(window.dash_clientside.observatory || {}, {
        here: here, openDialog: openDialog, closeDialog: closeDialog, askRemove: askRemove, showNode: showNode,
        costWords: costWords, findFrame: findFrame, openFrame: openFrame, addressOf: addressOf,
    });
})();
