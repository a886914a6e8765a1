;;; gptel-retention-search.el --- What was learned  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What once passed through a conversation stays findable: for you in a buffer
;; of places that lead to the text itself, for the model with tools of its own.
;; The backend learns conversations and saved chat files, searches them, and
;; gives a conversation what an earlier one found.
;;
;; A place is shown in the buffer or file that it came from only where the text
;; is there, word for word or but for markup.  Where it is not, the stored text
;; is shown, which is exact (evidence.md V1).
;;
;; A command only waits for the backend to start, and for the list to choose
;; from.  Nothing is written to a file here.

;;; Code:

(require 'button)
(require 'cl-lib)
(require 'pulse)
(require 'seq)
(require 'subr-x)
(require 'thingatpt)
(require 'gptel)
(require 'gptel-retention-rpc)
(require 'gptel-retention-turn)
(require 'gptel-retention-inspect)
(require 'gptel-retention-tools)

(declare-function gptel-retention-mode "gptel-retention" (&optional arg))
(declare-function org-fold-reveal "org-fold" (&optional siblings))

(defvar gptel-retention-mode)

(defcustom gptel-retention-search-hits 20
  "Places that `gptel-retention-search' shows at most."
  :type 'natnum
  :group 'gptel-retention)

(defcustom gptel-retention-evidence-tools nil
  "Non-nil means give the model tools that search what was learned.
It then reads from every conversation, chat file and output that was
learned, whatever provider that went to.  The tools are added to a
conversation from its first request on; one that began without them goes
on without them, since another list of tools is another prompt from its
start for the provider's cache."
  :type 'boolean
  :group 'gptel-retention)

;;; Asking

(defun gptel-retention-search--ready (method)
  "Have the backend run.  Signal a `user-error' if it has no METHOD."
  (condition-case err
      (gptel-retention-rpc-ensure)
    (gptel-retention-error
     (user-error "[retention] %s" (error-message-string err))))
  (unless (gptel-retention-rpc-capable-p method)
    (user-error "[retention] The backend has no %s; \
M-x gptel-retention-install-backend" method)))

(defun gptel-retention-search--ask (method params function)
  "Ask the backend METHOD with PARAMS, and call FUNCTION later.
FUNCTION is called in this buffer, unless that is killed, with the
answer and nil, or with nil and what went wrong, a string."
  (gptel-retention-search--ready method)
  (let ((buffer (current-buffer)))
    (condition-case err
        (gptel-retention-rpc-send
         method params
         (lambda (answer problem)
           ;; Not within a filter: FUNCTION may visit a file.
           (run-at-time 0 nil #'gptel-retention-search--call-in
                        buffer function answer
                        (and problem (error-message-string problem)))))
      (gptel-retention-error
       (user-error "[retention] %s" (error-message-string err))))))

(defun gptel-retention-search--call-in (buffer function answer problem)
  "Call FUNCTION with ANSWER and PROBLEM in BUFFER, unless it is killed."
  (when (buffer-live-p buffer)
    (with-current-buffer buffer
      (gptel-retention-rpc-demote "An answer of the backend is not shown"
        (funcall function answer problem)))))

;;; The query

(defconst gptel-retention-search--kinds
  '( "user" "assistant" "analysis" "tool_call" "tool_output" "delivery" "text"
     "file" "conversation" "output" "log" "run")
  "Kinds of events and of sources that a search can be limited to.")

(defconst gptel-retention-search--filters
  '(("tool" :tool identity)
    ("kind" :kind gptel-retention-search--kind)
    ("since" :since gptel-retention-search--day)
    ("until" :until gptel-retention-search--day-end))
  "Filters of a query: (NAME PARAMETER FUNCTION).
FUNCTION makes the value of the parameter from what is behind NAME and a
colon.")

(defvar gptel-retention-search-history nil
  "Queries that `gptel-retention-search' has read.")

(defun gptel-retention-search--kind (kind)
  "Return KIND if there is such a kind of event or source."
  (if (member kind gptel-retention-search--kinds)
      kind
    (user-error "[retention] No kind %s; the kinds are %s" kind
                (string-join gptel-retention-search--kinds ", "))))

(defun gptel-retention-search--day (day &optional days)
  "Return when DAY began here, in seconds since the epoch.
DAY is like 2025-12-31.  With DAYS it is the day so many days later."
  (let ((numbers (mapcar #'string-to-number (split-string day "-"))))
    (unless (and (string-match-p "\\`[0-9]\\{4\\}-[0-9][0-9]-[0-9][0-9]\\'"
                                 day)
                 (equal day (format-time-string
                             "%F" (gptel-retention-search--midnight numbers))))
      (user-error "[retention] No day %s; write it like 2025-12-31" day))
    (float-time (gptel-retention-search--midnight numbers days))))

(defun gptel-retention-search--midnight (numbers &optional days)
  "Return the time when the day of NUMBERS began, or DAYS later.
NUMBERS are (YEAR MONTH DAY)."
  (pcase-let ((`(,year ,month ,day) numbers))
    (encode-time (list 0 0 0 (+ day (or days 0)) month year nil -1 nil))))

(defun gptel-retention-search--day-end (day)
  "Return when DAY, as in `gptel-retention-search--day', ended here."
  (gptel-retention-search--day day 1))

(defun gptel-retention-search--params (query conversation only)
  "Return the parameters of a search for QUERY, a plist.
CONVERSATION, an id or nil, comes first, or is searched alone if ONLY is
non-nil or QUERY says so.  Signal a `user-error' for a QUERY that cannot
be meant."
  (let (words filters)
    (dolist (word (split-string query))
      (pcase (and (string-match "\\`\\([a-z]+\\):\\(.+\\)\\'" word)
                  (assoc (match-string 1 word)
                         gptel-retention-search--filters))
        (`(,_ ,parameter ,function)
         (setq filters (plist-put filters parameter
                                  (funcall function (match-string 2 word)))))
        ((guard (equal word "this:")) (setq only t))
        (_ (push word words))))
    (unless words
      (user-error "[retention] No word to search for"))
    (when (and only (null conversation))
      (user-error "[retention] No request was sent from this buffer yet"))
    `( :query ,(gptel-retention-rpc-clean-string
                (string-join (nreverse words) " "))
       :conversation ,(or conversation "")
       :only ,(if only t :json-false)
       :limit ,gptel-retention-search-hits
       :by "user"
       ,@filters)))

(defun gptel-retention-search--read (&optional initial)
  "Read a query, beginning with INITIAL, a string or nil."
  (read-string (format-prompt "Search what was learned" nil) initial
               'gptel-retention-search-history
               (thing-at-point 'symbol t)))

;;; The places that were found

(defvar-local gptel-retention-search--asked nil
  "What this buffer shows: (QUERY CONVERSATION ONLY) of the last search.")

(defvar-keymap gptel-retention-search-mode-map
  :doc "Keymap of `gptel-retention-search-mode'."
  :parent (make-composed-keymap button-buffer-map special-mode-map)
  "n" #'gptel-retention-search-next
  "p" #'gptel-retention-search-previous
  "RET" #'gptel-retention-search-visit
  "o" #'gptel-retention-search-display
  "s" #'gptel-retention-search-again
  "w" #'gptel-retention-search-copy-id
  "C-c C-f" #'next-error-follow-minor-mode
  "?" #'gptel-retention-menu)

(define-derived-mode gptel-retention-search-mode special-mode
  "Retention-Search"
  "Major mode of the buffer with the places that a search found.
\\<gptel-retention-search-mode-map>\\[gptel-retention-search-visit] \
goes to the place, \\[gptel-retention-search-again] changes the query.
\\{gptel-retention-search-mode-map}"
  :interactive nil
  (setq truncate-lines nil
        word-wrap t
        next-error-function #'gptel-retention-search-next-error
        revert-buffer-function #'gptel-retention-search--revert))

;;;###autoload
(defun gptel-retention-search (query &optional only)
  "Search what was learned for QUERY, and show the places in a buffer.
In a buffer with a conversation that one comes first; with ONLY, a
prefix argument, it is searched alone.

These words in QUERY limit what is found:
  tool:NAME           what this tool was asked and answered
  kind:KIND           user, assistant, analysis, tool_call, tool_output,
                      delivery, text; file, conversation, output, log, run
  since:2025-12-31    from this day on
  until:2025-12-31    up to the end of this day
  this:               this conversation alone

To search for such a word itself, put it in quotes."
  (interactive (list (gptel-retention-search--read) current-prefix-arg))
  (gptel-retention-search--start
   query
   (or (nth 1 gptel-retention-search--asked)
       (gptel-retention-turn-id (gptel-retention-inspect-conversation-buffer)))
   (and only t)))

(defun gptel-retention-search-again ()
  "Change the query of this buffer and search again."
  (interactive nil gptel-retention-search-mode)
  (pcase-let ((`(,query ,conversation ,only) gptel-retention-search--asked))
    (gptel-retention-search--start (gptel-retention-search--read query)
                                   conversation only)))

(defun gptel-retention-search--revert (&rest _)
  "Search again."
  (apply #'gptel-retention-search--start gptel-retention-search--asked))

(defun gptel-retention-search--start (query conversation only)
  "Search for QUERY, as in `gptel-retention-search--params', and show it.
CONVERSATION and ONLY are as there."
  (let ((params (gptel-retention-search--params query conversation only))
        (asked (list query conversation only)))
    (gptel-retention-search--ready "evidence/search")
    (with-current-buffer (get-buffer-create "*gptel-retention-search*")
      (unless (derived-mode-p 'gptel-retention-search-mode)
        (gptel-retention-search-mode))
      (setq gptel-retention-search--asked asked
            next-error-last-buffer (current-buffer))
      (gptel-retention-search--fill "searching" #'ignore)
      (gptel-retention-search--ask
       "evidence/search" params
       (lambda (answer problem)
         ;; An answer to an earlier question comes too late.
         (when (eq asked gptel-retention-search--asked)
           (gptel-retention-search--show answer problem))))
      (pop-to-buffer (current-buffer)))))

(defun gptel-retention-search--fill (state insert)
  "Replace the text of this buffer by calling INSERT.
The header line tells STATE."
  (pcase-let ((inhibit-read-only t)
              (`(,query ,_ ,only) gptel-retention-search--asked))
    (setq header-line-format
          (string-replace "%" "%%"
                          (format " %s%s: %s" query
                                  (if only " (this conversation)" "")
                                  state)))
    (erase-buffer)
    (funcall insert)
    (goto-char (point-min))))

(defun gptel-retention-search--show (answer problem)
  "Show ANSWER, what was found, or PROBLEM, a string or nil."
  (let* ((hits (gptel-retention-search--hits answer))
         (count (format (ngettext "%d place" "%d places" (length hits))
                        (length hits))))
    (gptel-retention-search--fill
     (if problem "failed" count)
     (lambda ()
       ;; Point begins here, in front of the first place.
       (insert (propertize (or problem (plist-get answer :note) count)
                           'face 'shadow)
               "\n\n")
       (seq-do #'gptel-retention-search--insert-hit hits)))))

(defun gptel-retention-search--hits (answer)
  "Return the places in ANSWER of the backend, a sequence of plists."
  (if-let* ((file (plist-get answer :hits_file)))
      (json-parse-string (gptel-retention-rpc-read-text file)
                         :object-type 'plist :null-object nil
                         :false-object :json-false)
    (plist-get answer :hits)))

(defun gptel-retention-search--text (plist key)
  "Return the string that PLIST has for KEY, or nil for an empty one."
  (let ((value (plist-get plist key)))
    (and (stringp value) (not (string-empty-p value)) value)))

(defun gptel-retention-search--name (plist)
  "Return the name of what PLIST, a place or a source, is from."
  (or (gptel-retention-search--text plist :title)
      (when-let* ((path (gptel-retention-search--text plist :path)))
        (abbreviate-file-name path))
      (gptel-retention-search--text plist :source)
      (gptel-retention-search--text plist :id)))

(defun gptel-retention-search--time (plist)
  "Return when PLIST, a place or a source, is from, or nil."
  (let ((time (or (plist-get plist :time) 0)))
    (and (> time 0) (gptel-retention-inspect-time time))))

(defun gptel-retention-search--insert-hit (hit)
  "Insert HIT, a plist, as a line about it and its excerpt."
  (let ((start (point)))
    (insert-text-button (string-replace "\n" " "
                                        (gptel-retention-search--name hit))
                        'action #'gptel-retention-search-visit
                        'help-echo "Go to this place"
                        'follow-link t)
    (insert "  "
            (string-join
             (delq nil
                   (list (gptel-retention-search--time hit)
                         (string-join
                          (delq nil
                                (list (or (gptel-retention-search--text
                                           hit :event)
                                          (plist-get hit :kind))
                                      (gptel-retention-search--text
                                       hit :tool)))
                          " ")
                         (plist-get hit :found)
                         (plist-get hit :id)))
             ", ")
            "\n")
    (let ((beg (point)))
      (insert (string-trim-right (plist-get hit :excerpt) "\n+") "\n")
      (gptel-retention-search--highlight hit beg (point))
      ;; The excerpt is indented for the eye alone: it stays exact.
      (add-text-properties beg (point)
                           '(line-prefix "    " wrap-prefix "    ")))
    (put-text-property start (point) 'gptel-retention-search-hit hit)
    (insert "\n")))

(defun gptel-retention-search--words (hit)
  "Return a regexp for the words that HIT has of the query, or nil."
  (when-let* ((words (append (plist-get hit :words) nil)))
    (concat "\\b" (regexp-opt words))))

(defun gptel-retention-search--highlight (hit beg end)
  "Highlight the words that HIT has of the query between BEG and END."
  (when-let* ((regexp (gptel-retention-search--words hit)))
    (let ((case-fold-search t))
      (save-excursion
        (goto-char beg)
        (while (re-search-forward regexp end t)
          (add-face-text-property (match-beginning 0) (match-end 0)
                                  'match))))))

;;; Moving about

(defun gptel-retention-search--places ()
  "Return where the places in this buffer begin, in order."
  (let ((position (point-min)) places)
    (while (< position (point-max))
      (when (get-text-property position 'gptel-retention-search-hit)
        (push position places))
      (setq position (next-single-property-change
                      position 'gptel-retention-search-hit nil (point-max))))
    (nreverse places)))

(defun gptel-retention-search-next (&optional count)
  "Move to the next place, or with COUNT that many further on."
  (interactive "p" gptel-retention-search-mode)
  (let* ((places (gptel-retention-search--places))
         (here (1- (seq-count (lambda (place) (<= place (point))) places)))
         (there (+ here (or count 1))))
    (unless (< -1 there (length places))
      (user-error "[retention] No more places"))
    (goto-char (nth there places))))

(defun gptel-retention-search-previous (&optional count)
  "Move to the place before, or with COUNT that many further back."
  (interactive "p" gptel-retention-search-mode)
  (gptel-retention-search-next (- (or count 1))))

(defun gptel-retention-search-next-error (&optional count reset)
  "Go to the place that is COUNT further on; from the start with RESET.
This is the value of `next-error-function' here."
  (when reset
    (goto-char (point-min)))
  (gptel-retention-search-next count)
  (when-let* ((window (get-buffer-window nil t)))
    (set-window-point window (point)))
  (gptel-retention-search-visit))

(defun gptel-retention-search--hit ()
  "Return the place at point, a plist, or signal a `user-error'.
In front of all places, where point is after a search, it is the first."
  (let ((first (car (gptel-retention-search--places))))
    (when (and first (< (point) first))
      (goto-char first))
    (or (get-text-property (point) 'gptel-retention-search-hit)
        (user-error "[retention] There is no place here"))))

(defun gptel-retention-search-copy-id ()
  "Copy the id of the place at point as the last kill."
  (interactive nil gptel-retention-search-mode)
  (let ((id (plist-get (gptel-retention-search--hit) :id)))
    (kill-new id)
    (message "[retention] Copied %s" id)))

(defun gptel-retention-search-visit (&optional _button)
  "Go to the place at point: in its buffer, its file, or the stored text."
  (interactive nil gptel-retention-search-mode)
  (gptel-retention-search--go (gptel-retention-search--hit) t))

(defun gptel-retention-search-display ()
  "Show the place at point in another window, and stay here."
  (interactive nil gptel-retention-search-mode)
  (gptel-retention-search--go (gptel-retention-search--hit) nil))

;;; Going to a place

(defun gptel-retention-search--go (hit select)
  "Show the place of HIT; with SELECT non-nil select its window.
That is where the text is found: in the conversation's buffer, in the
file, else in what is stored."
  (let (tried)
    (unless (seq-some
             (lambda (find)
               (when-let* ((buffer (funcall find hit)))
                 (cl-pushnew (buffer-name buffer) tried :test #'equal)
                 (when-let* ((place (with-current-buffer buffer
                                      (gptel-retention-search--locate hit))))
                   (gptel-retention-search--show-place
                    buffer (plist-get place :position) select)
                   (gptel-retention-search--caution place)
                   t)))
             '(gptel-retention-search--conversation-buffer
               gptel-retention-search--file-buffer))
      (gptel-retention-search--open-stored hit select tried))))

(defun gptel-retention-search--conversation-buffer (hit)
  "Return the buffer with the conversation of HIT, or nil."
  (when-let* ((id (gptel-retention-search--text hit :conversation)))
    (seq-find (lambda (buffer)
                (equal id (buffer-local-value 'gptel-retention-id buffer)))
              (buffer-list))))

(defun gptel-retention-search--file-buffer (hit)
  "Return a buffer that visits the file of HIT, or nil if there is none.
The backend reads local files alone."
  (when-let* ((path (gptel-retention-search--text hit :path))
              ((not (file-remote-p path)))
              ((file-regular-p path))
              ((file-readable-p path)))
    (find-file-noselect path)))

(defun gptel-retention-search--show-place (buffer position select)
  "Show POSITION of BUFFER; with SELECT non-nil select its window.
A window with the places, which are in this buffer, is left alone, and
without SELECT the selected one is."
  (let ((action (if (and select (not (eq (window-buffer) (current-buffer))))
                    '((display-buffer-reuse-window
                       display-buffer-same-window))
                  '(nil (inhibit-same-window . t))))
        window)
    (save-selected-window
      (pop-to-buffer buffer action)
      (setq window (selected-window))
      (push-mark nil t)
      (unless (<= (point-min) position (point-max))
        (widen))
      (goto-char position)
      (gptel-retention-search--reveal)
      (pulse-momentary-highlight-one-line))
    (when select
      (select-window window))))

(defun gptel-retention-search--reveal ()
  "Make the text at point visible."
  (when (derived-mode-p 'org-mode)
    (org-fold-reveal))
  (dolist (overlay (overlays-at (point)))
    (when (invisible-p (overlay-get overlay 'invisible))
      (overlay-put overlay 'invisible nil))))

(defun gptel-retention-search--caution (place)
  "Tell what is not sure about PLACE."
  (cond ((> (plist-get place :others) 0)
         (message "[retention] %d more places here read the same"
                  (plist-get place :others)))
        ((plist-get place :alone)
         (message "[retention] Of the text that was found, only this line \
is here"))))

;;; Finding the text

(defun gptel-retention-search--locate (hit)
  "Return where the text of HIT is in this buffer, or nil.
The value is a plist: :position, that of the match; :others, how many
more places are as good; :alone, non-nil if nothing around it is alike."
  (let ((case-fold-search nil)
        (lines (split-string (plist-get hit :excerpt) "\r?\n"))
        (words (gptel-retention-search--words hit)))
    (save-excursion
      (save-restriction
        (widen)
        (or (gptel-retention-search--find-excerpt
             (string-join lines "\n") (1+ (or (plist-get hit :place) 0)) words)
            (seq-some (lambda (number)
                        (gptel-retention-search--find-line
                         lines number words))
                      (gptel-retention-search--best-lines lines words)))))))

(defun gptel-retention-search--find-excerpt (excerpt position words)
  "Find EXCERPT, word for word; that around POSITION is the place itself.
WORDS is a regexp, or nil.  The value is as in
`gptel-retention-search--locate'."
  (unless (string-blank-p excerpt)
    (let (starts)
      (goto-char (point-min))
      (while (search-forward excerpt nil t)
        (push (match-beginning 0) starts)
        (goto-char (1+ (match-beginning 0))))
      (when starts
        (let ((own (seq-find (lambda (start)
                               (<= start position (+ start (length excerpt))))
                             starts)))
          (goto-char (or own (car (last starts))))
          (list :position
                ;; In a file with other line ends offsets are others, too.
                (if (and own (gptel-retention-search--at-word-p words
                                                                position))
                    position
                  (gptel-retention-search--first-word
                   words (+ (point) (length excerpt))))
                :others (if own 0 (1- (length starts)))))))))

(defun gptel-retention-search--at-word-p (words position)
  "Return non-nil if WORDS, a regexp, match at POSITION, or are nil."
  (let ((case-fold-search t))
    (save-excursion
      (goto-char position)
      (or (null words) (looking-at-p words)))))

(defun gptel-retention-search--first-word (words end)
  "Return where WORDS, a regexp or nil, first match from point to END.
If they do not, that is at point."
  (let ((case-fold-search t))
    (save-excursion
      (if (and words (re-search-forward words end t))
          (match-beginning 0)
        (point)))))

(defun gptel-retention-search--best-lines (lines words)
  "Return the numbers of those LINES that may be the match, the best first.
These are the ones with the most different WORDS, a regexp; if that is
nil, all."
  (let* ((case-fold-search t)
         (counts (mapcar
                  (lambda (line)
                    (let ((start 0) found)
                      (while (and words (string-match words line start))
                        (cl-pushnew (downcase (match-string 0 line)) found
                                    :test #'equal)
                        (setq start (match-end 0)))
                      (length found)))
                  lines)))
    (seq-filter (lambda (number) (or (null words) (> (nth number counts) 0)))
                (seq-sort-by (lambda (number) (nth number counts)) #'>
                             (number-sequence 0 (1- (length lines)))))))

(defconst gptel-retention-search--line-words 60
  "Words of a line that are compared; a regexp cannot be of any length.")

(defun gptel-retention-search--loosely (lines number)
  "Return a regexp for line NUMBER of LINES whatever its markup, or nil.
The first and the last of LINES may be cut within a word."
  (when-let* ((words (split-string (nth number lines) "[^[:alnum:]]+" t)))
    (let ((shown (take gptel-retention-search--line-words words)))
      (concat (if (> number 0) "\\b" "")
              (mapconcat #'regexp-quote shown "[^[:alnum:]\n]+")
              (if (or (< number (1- (length lines)))
                      (nthcdr gptel-retention-search--line-words words))
                  "\\b" "")))))

(defun gptel-retention-search--find-line (lines number words)
  "Find line NUMBER of LINES, whatever its markup, among lines like the others.
Where nothing around it is alike, it is found only if it is there once.
WORDS is a regexp, or nil.  The value is as in
`gptel-retention-search--locate'."
  (when-let* ((regexp (gptel-retention-search--loosely lines number)))
    (let ((others (delq nil (mapcar
                             (lambda (other)
                               (and (/= other number)
                                    (gptel-retention-search--loosely
                                     lines other)))
                             (number-sequence 0 (1- (length lines))))))
          (best -1) (count 0) position)
      (goto-char (point-min))
      (while (re-search-forward regexp nil t)
        (let* ((beg (match-beginning 0))
               (end (match-end 0))
               (score (gptel-retention-search--alike others beg end)))
          (cond ((> score best)
                 (goto-char beg)
                 (setq best score
                       count 0
                       position (gptel-retention-search--first-word words
                                                                    end)))
                ((= score best) (cl-incf count)))
          (goto-char end)))
      (and position
           (or (null others) (> best 0) (= count 0))
           (list :position position :others count
                 :alone (and others (= best 0)))))))

(defun gptel-retention-search--alike (regexps beg end)
  "Return how many of REGEXPS match in the lines around BEG to END."
  (save-excursion
    (let* ((lines (* 2 (1+ (length regexps)))) ; markup adds lines
           (high (progn (goto-char end) (line-end-position (1+ lines))))
           (low (progn (goto-char beg) (line-beginning-position
                                        (- 1 lines)))))
      (seq-count (lambda (regexp)
                   (goto-char low)
                   (re-search-forward regexp high t))
                 regexps))))

;;; The stored text

(defconst gptel-retention-search--lead 2000
  "Characters of the stored text that are shown before a place at first.")

(defconst gptel-retention-search--earlier 100000
  "Characters that are read at a time of the stored text before that.
The backend answers with more than that, if there is more.")

(defvar-local gptel-retention-search--page nil
  "What of the stored text is shown: (ID FIRST NEXT TOTAL).
That is what ID stands for from FIRST, an offset, on, up to NEXT, of
TOTAL characters.")

(defvar-keymap gptel-retention-search-text-mode-map
  :doc "Keymap of `gptel-retention-search-text-mode'."
  :parent (make-composed-keymap button-buffer-map special-mode-map))

(define-derived-mode gptel-retention-search-text-mode
  gptel-retention-output-mode "Retention-Text"
  "Major mode of buffers that show a stored text.
The buttons at its ends read more of it.
\\{gptel-retention-search-text-mode-map}"
  :interactive nil
  (setq truncate-lines nil
        revert-buffer-function #'ignore))

(defun gptel-retention-search--open-stored (hit select tried)
  "Show the stored text of HIT, at its place; with SELECT select its window.
TRIED are the names of the buffers in which it was not found."
  (let* ((id (plist-get hit :id))
         (at (or (plist-get hit :at) 0))
         (first (max 0 (- at gptel-retention-search--lead)))
         (window (selected-window)))
    (gptel-retention-search--ask
     "evidence/expand" (list :id id :offset first :by "user")
     (lambda (page problem)
       (if problem
           (message "[retention] %s" problem)
         (let ((buffer (gptel-retention-search--text-buffer hit page first)))
           (gptel-retention-search--show-place
            buffer
            (with-current-buffer buffer
              (min (point-max) (+ (gptel-retention-search--text-start)
                                  (- at first))))
            ;; Whoever has gone on is not called back.
            (and select (eq window (selected-window))))
           (when tried
             (message "[retention] Not found in %s: this is the stored text"
                      (string-join (nreverse tried) ", ")))))))))

(defun gptel-retention-search--text-buffer (hit page first)
  "Return a buffer with PAGE of the text of HIT, that from FIRST on."
  (let ((text (gptel-retention-inspect-page (plist-get hit :id) page)))
    (with-current-buffer (get-buffer-create
                          (format "*gptel-retention-text %s*"
                                  (plist-get hit :id)))
      (gptel-retention-search-text-mode)
      (setq gptel-retention-search--page
            (list (plist-get hit :id) first (+ first (length text))
                  (or (plist-get page :total) 0)))
      (let ((inhibit-read-only t))
        (erase-buffer)
        (insert text)
        (gptel-retention-search--highlight hit (point-min) (point-max))
        (gptel-retention-search--put-buttons hit))
      (current-buffer))))

(defun gptel-retention-search--text-start ()
  "Return where the stored text begins in this buffer, behind a button."
  (if (get-text-property (point-min) 'button)
      (next-single-property-change (point-min) 'button)
    (point-min)))

(defun gptel-retention-search--put-buttons (hit)
  "Put buttons around the text of HIT that read the rest of it.
The header line tells what is shown."
  (pcase-let ((`(,id ,first ,next ,total) gptel-retention-search--page))
    (setq header-line-format
          (string-replace
           "%" "%%"
           (format " %s, %s: characters %d to %d of %d"
                   (gptel-retention-search--name hit) id first next total)))
    (save-excursion
      (when (> first 0)
        (goto-char (point-min))
        (gptel-retention-search--insert-button "[Earlier text]\n" hit t))
      (when (< next total)
        (goto-char (point-max))
        (gptel-retention-search--insert-button "\n[More text]" hit nil)))))

(defun gptel-retention-search--insert-button (label hit earlier)
  "Insert a button LABEL to read more of the text of HIT.
With EARLIER non-nil that is what stands before the text shown."
  (insert-text-button label
                      'action (lambda (_)
                                (gptel-retention-search--extend hit earlier))
                      'help-echo "Read another page"
                      'follow-link t))

(defun gptel-retention-search--extend (hit earlier)
  "Read another page of the text of HIT, the one before if EARLIER."
  (pcase-let* ((shown gptel-retention-search--page)
               (`(,id ,first ,next ,_) shown)
               (offset (if earlier
                           (max 0 (- first gptel-retention-search--earlier))
                         next)))
    (gptel-retention-search--ask
     "evidence/expand" (list :id id :offset offset :by "user")
     (lambda (page problem)
       (cond (problem (message "[retention] %s" problem))
             ;; Pressed twice, the button reads one page.
             ((eq shown gptel-retention-search--page)
              (gptel-retention-search--add
               hit earlier offset
               (gptel-retention-inspect-page id page))))))))

(defun gptel-retention-search--add (hit earlier offset text)
  "Add TEXT of HIT, that from OFFSET on, to the text in this buffer.
It stands before that if EARLIER is non-nil; then what is shown already
is left out."
  (pcase-let ((inhibit-read-only t)
              (`(,id ,first ,next ,total) gptel-retention-search--page))
    (when earlier
      (setq text (substring text 0 (- first offset))))
    (save-excursion
      (gptel-retention-search--delete-buttons)
      (goto-char (if earlier (point-min) (point-max)))
      (let ((beg (point)))
        (insert text)
        (gptel-retention-search--highlight hit beg (point)))
      (setq gptel-retention-search--page
            (if earlier
                (list id offset next total)
              (list id first (+ next (length text)) total)))
      (gptel-retention-search--put-buttons hit))))

(defun gptel-retention-search--delete-buttons ()
  "Delete the buttons around the stored text in this buffer."
  (delete-region (point-min) (gptel-retention-search--text-start))
  (let ((end (previous-single-property-change (point-max) 'button nil
                                              (point-min))))
    (when (get-text-property end 'button)
      (delete-region end (point-max)))))

;;; Learning

;;;###autoload
(defun gptel-retention-learn (file)
  "Have FILE learned, a saved chat or a log, so that it can be searched.
Interactively that is the file of this buffer; without one, and with a
prefix argument, it is read."
  (interactive (list (gptel-retention-search--file-to-learn)))
  (let ((file (expand-file-name file)))
    (when (file-remote-p file)
      (user-error "[retention] The backend cannot read remote files"))
    (gptel-retention-search--ask
     "evidence/learn"
     (list :path (gptel-retention-rpc-clean-string file))
     (lambda (answer problem)
       (message "[retention] %s"
                (or problem (gptel-retention-search--learned answer file)))))))

(defun gptel-retention-search--file-to-learn ()
  "Return the file of this buffer, or read one.
What was not saved could not be learned: offer to save it."
  (let ((file (buffer-file-name (buffer-base-buffer))))
    (cond ((or (null file) current-prefix-arg)
           (read-file-name "Learn file: " nil file t))
          (t
           (when (and (buffer-modified-p)
                      (y-or-n-p (format "Save %s first? "
                                        (file-name-nondirectory file))))
             (save-buffer))
           file))))

(defun gptel-retention-search--learned (answer file)
  "Return ANSWER of the backend, which was to learn FILE, in words."
  (let ((sources (plist-get answer :sources)))
    (if (seq-empty-p sources)
        (format "Nothing was learned from %s" file)
      (mapconcat
       (lambda (source)
         (string-join
          (cons (format "%s %s: %d chunks, %d characters"
                        (if (eq t (plist-get source :changed))
                            "Learned" "Known already,")
                        (gptel-retention-search--name source)
                        (or (plist-get source :chunks) 0)
                        (or (plist-get source :chars) 0))
                (append (plist-get source :warnings) nil))
          "; "))
       sources "\n"))))

;;; Resuming

;;;###autoload
(defun gptel-retention-resume (source &optional here)
  "Begin a chat that knows what the tools of SOURCE have found.
SOURCE is an earlier conversation or a chat file that was learned, a
plist as in `evidence/sources'.  The next request carries a bounded
selection of that, the newest first; the buffer does not show it.
With HERE, a prefix argument, go on in this chat instead of a new one."
  (interactive (list (gptel-retention-search--read-source
                      (and current-prefix-arg (gptel-retention-turn-id)))
                     current-prefix-arg))
  (gptel-retention-search--ready "evidence/resume")
  (let ((chat (if here
                  (current-buffer)
                (gptel-retention-search--new-chat source))))
    (with-current-buffer chat
      (unless (bound-and-true-p gptel-mode)
        (user-error "[retention] This buffer is no chat"))
      (unless gptel-retention-mode
        (gptel-retention-mode))
      (gptel-retention-tools-with-id
       (lambda (id)
         (gptel-retention-search--resume id source))))
    (pop-to-buffer chat)))

(defun gptel-retention-search--new-chat (source)
  "Return a new chat that is named after SOURCE."
  (gptel (generate-new-buffer-name
          (format "*%s, resumed*"
                  (truncate-string-to-width
                   (string-replace "\n" " "
                                   (gptel-retention-search--name source))
                   60 nil nil t)))))

(defun gptel-retention-search--resume (id source)
  "Give the conversation ID what SOURCE found, and tell what that is."
  (if (string-empty-p id)
      (message "[retention] The new conversation could not be opened")
    (gptel-retention-search--ask
     "evidence/resume"
     (list :conversation id :source (plist-get source :source))
     (lambda (answer problem)
       (message "[retention] %s"
                (or problem (gptel-retention-search--resumed
                             answer source)))))))

(defun gptel-retention-search--resumed (answer source)
  "Return ANSWER of the backend, which was to resume SOURCE, in words."
  (let ((count (lambda (key) (or (plist-get answer key) 0))))
    (string-join
     (cons (format "%s: %s%s" (gptel-retention-search--name source)
                   (if (> (funcall count :items) 0)
                       (format "the next request has %d findings"
                               (funcall count :items))
                     "there is nothing to give to the next request")
                   (if (> (funcall count :skipped) 0)
                       (format ", %d did not fit" (funcall count :skipped))
                     ""))
           (append (plist-get answer :warnings) nil))
     "; ")))

(defun gptel-retention-search--read-source (own)
  "Read an earlier conversation or chat file; return its plist.
The one with the id OWN, or nil, is left out."
  (let* ((sources (gptel-retention-search--sources own))
         (table (gptel-retention-search--source-table sources)))
    (unless table
      (user-error "[retention] Nothing was learned that could be resumed; \
M-x gptel-retention-learn"))
    (cdr (assoc (completing-read
                 "Resume: "
                 (lambda (string predicate action)
                   (if (eq action 'metadata)
                       `(metadata
                         (display-sort-function . identity)
                         (cycle-sort-function . identity)
                         (annotation-function
                          . ,(lambda (name)
                               (gptel-retention-search--annotation
                                (cdr (assoc name table))))))
                     (complete-with-action action table string predicate)))
                 nil t)
                table))))

(defun gptel-retention-search--sources (own)
  "Return the conversations and files that were learned, the newest first.
The conversation with the id OWN, or nil, is left out."
  (gptel-retention-search--ready "evidence/sources")
  (seq-sort-by
   (lambda (source) (or (plist-get source :time) 0)) #'>
   (seq-remove
    (lambda (source)
      (and own (equal own (plist-get source :conversation))))
    (seq-mapcat (lambda (kind)
                  (append (plist-get (gptel-retention-inspect-ask
                                      "evidence/sources" (list :kind kind))
                                     :sources)
                          nil))
                '("conversation" "file")))))

(defun gptel-retention-search--source-table (sources)
  "Return an alist of names and SOURCES, in their order.
Where names are the same, all but the first have their id behind them."
  (let (table)
    (dolist (source sources (nreverse table))
      (let ((name (gptel-retention-search--name source)))
        (push (cons (if (assoc name table)
                        (format "%s (%s)" name (plist-get source :source))
                      name)
                    source)
              table)))))

(defun gptel-retention-search--annotation (source)
  "Return what is said about SOURCE behind its name."
  (concat "  "
          (string-join
           (delq nil
                 (list (plist-get source :kind)
                       (gptel-retention-search--time source)
                       (format "%d characters" (or (plist-get source :chars)
                                                   0))
                       (when-let* ((path (gptel-retention-search--text
                                          source :path)))
                         (abbreviate-file-name path))))
           ", ")))

;;; Tools for the model

(defvar-local gptel-retention-search-offered nil
  "Non-nil if this conversation has the tools for what was learned.
It is saved beside the conversation's id.")
;;;###autoload
(put 'gptel-retention-search-offered 'safe-local-variable #'booleanp)
(put 'gptel-retention-search-offered 'permanent-local t)

(defvar gptel-retention-search--tools nil
  "Our tools for what was learned, once they are made.
An alist: what else their description says, and the tools.")

(defun gptel-retention-search--tools-wanted-p ()
  "Return non-nil if a new conversation is to have the tools."
  gptel-retention-evidence-tools)

(defun gptel-retention-search--tools (before)
  "Return our tools for what was learned, a list.
The order and every word in them are part of the prompt.  BEFORE are our
tools that stand before them, whose description tells how to read TOON."
  (let ((more (if before "" (concat "\n\n" gptel-retention-tools-toon))))
    (with-memoization (alist-get more gptel-retention-search--tools
                                 nil nil #'equal)
      (gptel-retention-search--make-tools more))))

(defun gptel-retention-search--make-tools (more)
  "Make our tools for what was learned, described with MORE; return them."
  (list
   (gptel-make-tool
    :name "search_evidence"
    :category gptel-retention-tools-category
    :description (concat "\
Search earlier conversations, chat files, tool outputs and logs that were learned, by words and by
meaning.  The answer has short exact excerpts, each with an id that expand_evidence takes.  Only
what was learned is searched: an empty answer does not mean that the fact does not exist.  Then
try other words, or look at the thing itself." more)
    :args
    `((:name "query" :type string
       :description "Words to look for: names, paths, words of an error, or a question")
      (:name "tool" :type string :optional t
       :description "Only what the tool of this name was asked and answered")
      (:name "kind" :type string :optional t
       :enum ,(vconcat gptel-retention-search--kinds)
       :description "Only events, or sources, of this kind")
      (:name "this_conversation" :type boolean :optional t
       :description "Only this conversation; else it comes first")
      (:name "limit" :type integer :optional t
       :description "Places at most, 10 if absent"))
    :function #'gptel-retention-search--answer-search
    :async t
    :include t)
   (gptel-make-tool
    :name "expand_evidence"
    :category gptel-retention-tools-category
    :description "\
Return the exact text that an id in an answer of search_evidence stands for, page by page.  An
answer that had to be cut says at which offset to go on."
    :args
    '((:name "id" :type string
       :description "Id, as search_evidence names it")
      (:name "offset" :type integer :optional t
       :description "Where to begin, in characters"))
    :function #'gptel-retention-search--answer-expand
    :async t
    :include t)))

(defun gptel-retention-search--answer-search
    (callback query tool kind this limit)
  "Call CALLBACK with what is found for QUERY, for a model.
TOOL, KIND, THIS conversation and LIMIT are as the tool has them."
  (let ((query (gptel-retention-tools-string query))
        (limit (gptel-retention-tools-number limit)))
    (gptel-retention-tools-answer
     callback "search_evidence" query "evidence/search"
     `( :query ,query
        :conversation ,(or (gptel-retention-turn-id) "")
        :only ,(if (eq this t) t :json-false)
        :tool ,(gptel-retention-tools-string tool)
        :kind ,(gptel-retention-tools-string kind)
        ,@(and (> limit 0) (list :limit limit))
        :cap ,(or gptel-retention-answer-limit 0)
        :by "model"))))

(defun gptel-retention-search--answer-expand (callback id offset)
  "Call CALLBACK with the text of ID from OFFSET on, for a model."
  (let ((id (gptel-retention-tools-string id)))
    (gptel-retention-tools-answer
     callback "expand_evidence" id "evidence/expand"
     (list :id id
           :offset (gptel-retention-tools-number offset)
           :cap (or gptel-retention-answer-limit 0)
           :by "model"))))

;; Behind the tools for outputs.
(add-to-list 'gptel-retention-tools-kinds
             '( gptel-retention-search-offered "GPTEL_RETENTION_SEARCH"
                gptel-retention-search--tools-wanted-p
                gptel-retention-search--tools)
             t)

(provide 'gptel-retention-search)
;;; gptel-retention-search.el ends here
