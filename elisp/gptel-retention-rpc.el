;;; gptel-retention-rpc.el --- Talk to the backend  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The backend process and its requests.  This is the only file that names
;; jsonrpc.el.  It is the lowest one: it defines the customization group, the
;; options that starting and talking to the backend need, and the error tree.
;;
;; A request is sent asynchronously and waited for with a deadline; its state
;; is lexical, so that requests may nest (another chat's sentinel can run
;; while one waits).  No frame is larger than 16 KB, since a backend that does
;; not read would freeze Emacs; larger texts travel in private files.  Every
;; failure is a signal of the `gptel-retention-error' family, in time.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'jsonrpc)

(defvar warning-minimum-log-level)

;;; Options

(defgroup gptel-retention nil
  "Keep the prompt of a gptel conversation exact over time."
  :group 'gptel
  :prefix "gptel-retention-")

(defcustom gptel-retention-command '("retention" "serve")
  "Program and arguments that start the backend.
Change it when the backend is not found on variable `exec-path'."
  :type '(repeat string))

(defcustom gptel-retention-store-directory nil
  "Directory where the backend keeps its store, or nil for its own choice.
Change it to keep the store elsewhere than the backend does by default.
It takes effect when the backend starts the next time."
  :type '(choice (const :tag "Chosen by the backend" nil) directory))

(defcustom gptel-retention-timeout 1.0
  "Seconds that Emacs waits for the backend before a request goes out.
After that the request goes out as gptel made it.  Raise it on a slow
machine, if messages tell that the backend did not answer in time."
  :type 'number)

(defcustom gptel-retention-start-timeout 5
  "Seconds that Emacs waits at most for a starting backend.
This applies to the first contact alone."
  :type 'number)

(defcustom gptel-retention-debug nil
  "Non-nil means keep a log of what Emacs and the backend say.
The log holds the text of conversations.  Set it only to find out why
something went wrong; it takes effect when the backend starts again."
  :type 'boolean)

;;; Errors

(define-error 'gptel-retention-error "Retention error")
(define-error 'gptel-retention-unavailable
              "Retention backend unavailable" 'gptel-retention-error)
(define-error 'gptel-retention-timeout
              "Retention backend did not answer in time"
              'gptel-retention-error)
(define-error 'gptel-retention-protocol-error
              "Retention backend not understood" 'gptel-retention-error)
(define-error 'gptel-retention-server-error
              "Retention backend refused" 'gptel-retention-error)

(defun gptel-retention-error-code (err)
  "Return the backend's stable code in ERR, a string, or nil.
ERR is the value of a `condition-case' variable."
  (and (eq (car-safe err) 'gptel-retention-server-error)
       (stringp (cadr err))
       (cadr err)))

(defvar gptel-retention-rpc--reported nil
  "Causes of trouble told since the backend last started.")

(defun gptel-retention-rpc-report (cause format &rest args)
  "Tell about CAUSE once, with a message made of FORMAT and ARGS.
CAUSE is compared with `equal'; a new start of the backend forgets it.
With `gptel-retention-debug' the message comes each time."
  (unless (and (member cause gptel-retention-rpc--reported)
               (not gptel-retention-debug))
    (cl-pushnew cause gptel-retention-rpc--reported :test #'equal)
    (message "[retention] %s" (apply #'format-message format args))))

(defun gptel-retention-rpc-report-error (err what)
  "Tell about the error ERR once, WHAT being what could not be done."
  (gptel-retention-rpc-report
   (list what (car-safe err) (gptel-retention-error-code err))
   "%s: %s" what (error-message-string err)))

(defmacro gptel-retention-rpc-demote (what &rest body)
  "Run BODY; an error becomes one message about WHAT could not be done.
Return the value of BODY, or nil after an error.  A quit passes through."
  (declare (indent 1) (debug t))
  (let ((err (make-symbol "err")))
    `(condition-case ,err
         (progn ,@body)
       (error (gptel-retention-rpc-report-error ,err ,what) nil))))

;;; The backend process

(cl-defstruct (gptel-retention-rpc--server (:copier nil))
  "One run of the backend.
GENERATION numbers the runs.  READY becomes the answer to `initialize';
PROBLEM becomes (SYMBOL . DATA) of what went wrong instead."
  connection process generation started ready problem)

(defconst gptel-retention-rpc-protocol 1
  "Version of the protocol that this adapter speaks.")

(defconst gptel-retention-rpc--shortest-pause 5
  "Seconds without the backend after its first failure.")

(defconst gptel-retention-rpc--longest-pause 300
  "Seconds without the backend after many failures.")

(defvar gptel-retention-rpc--server nil
  "The current run of the backend, or nil.")
(defvar gptel-retention-rpc--generation 0
  "Number of the last run of the backend.")
(defvar gptel-retention-rpc--failures 0
  "Failures since the backend last answered.")
(defvar gptel-retention-rpc--pause-end 0
  "Time in seconds since the epoch until which the backend is left alone.")
(defvar gptel-retention-rpc--deadline nil
  "Time in seconds since the epoch that an enclosing wait ends, or nil.
Bound during each wait, so that nested waits share one deadline.")

(defun gptel-retention-rpc-generation ()
  "Return the number of the running backend's run, or nil.
What a backend holds in memory is gone when the number has changed."
  (and (gptel-retention-rpc--live-p)
       (gptel-retention-rpc--server-generation gptel-retention-rpc--server)))

(defun gptel-retention-rpc-ready-p ()
  "Return non-nil once the backend has said what it is."
  (and (gptel-retention-rpc--live-p)
       (gptel-retention-rpc--server-ready gptel-retention-rpc--server)
       t))

(defun gptel-retention-rpc-capable-p (method)
  "Return non-nil if the backend is ready and answers METHOD."
  (and (gptel-retention-rpc-ready-p)
       (seq-contains-p (plist-get (gptel-retention-rpc--server-ready
                                   gptel-retention-rpc--server)
                                  :capabilities)
                       method)
       t))

(defun gptel-retention-rpc-status ()
  "Return a plist that describes the backend.
:state is `ready', `starting', `paused' or `stopped'; :pause the seconds
until a paused backend is tried again; :version, :store and
:capabilities are what a ready backend said of itself."
  (let ((pause (- gptel-retention-rpc--pause-end (float-time))))
    (cond
     ((gptel-retention-rpc-ready-p)
      (let ((said (gptel-retention-rpc--server-ready
                   gptel-retention-rpc--server)))
        (list :state 'ready
              :version (plist-get said :version)
              :store (plist-get said :store)
              :capabilities (plist-get said :capabilities))))
     ((> pause 0) (list :state 'paused :pause pause))
     ((gptel-retention-rpc--live-p) (list :state 'starting))
     (t (list :state 'stopped)))))

(defun gptel-retention-rpc--live-p ()
  "Return non-nil if the backend process is alive."
  (and gptel-retention-rpc--server
       (process-live-p (gptel-retention-rpc--server-process
                        gptel-retention-rpc--server))))

(defun gptel-retention-rpc--command ()
  "Return the command to start the backend, a list of strings."
  (append gptel-retention-command
          (and gptel-retention-store-directory
               (list "--store"
                     (expand-file-name gptel-retention-store-directory)))))

(defun gptel-retention-rpc--process (name)
  "Start the backend program as a process called NAME and return it.
It never starts on a remote machine, and does not see environments that
are local to the current buffer."
  (let ((default-directory (file-name-as-directory
                            (expand-file-name temporary-file-directory)))
        (process-environment (default-value 'process-environment))
        (exec-path (default-value 'exec-path)))
    (make-process :name name
                  :command (gptel-retention-rpc--command)
                  :connection-type 'pipe
                  :coding 'utf-8-emacs-unix
                  :noquery t
                  :stderr (get-buffer-create (format "*%s stderr*" name)))))

(defun gptel-retention-rpc--connection (name)
  "Start the backend and return a connection called NAME.
Older versions of jsonrpc.el size their log by another argument."
  (let ((size (if gptel-retention-debug 2000000 0)) ; characters
        (arguments
         (list 'jsonrpc-process-connection
               :name name
               :process (lambda () (gptel-retention-rpc--process name))
               :on-shutdown #'gptel-retention-rpc--forget-buffers)))
    (condition-case nil
        (apply #'make-instance
               (append arguments
                       `(:events-buffer-config (:size ,size :format full))))
      (invalid-slot-name
       (apply #'make-instance
              (append arguments `(:events-buffer-scrollback-size ,size)))))))

(defun gptel-retention-rpc--forget-buffers (connection)
  "Kill the buffers of CONNECTION, unless they are kept for debugging."
  (gptel-retention-rpc--kill-buffers (jsonrpc-name connection)))

(defun gptel-retention-rpc--kill-buffers (name)
  "Kill the buffers of the connection called NAME, unless debugging."
  (unless gptel-retention-debug
    (dolist (format '("*%s stderr*" " *%s stderr*" " *%s output*"
                      "*%s events*"))
      (when-let* ((buffer (get-buffer (format format name)))
                  (kill-buffer-query-functions '(always)))
        (kill-buffer buffer)))))

(defun gptel-retention-rpc--quiet (function)
  "Return FUNCTION with its messages and warnings silenced.
What a broken backend wrote would be shown in full otherwise."
  (lambda (&rest args)
    (let ((inhibit-message t)
          (message-log-max nil)
          (warning-minimum-log-level :emergency))
      (apply function args))))

(defun gptel-retention-rpc--start ()
  "Start the backend, send `initialize' and return the server.
The answer arrives later; see `gptel-retention-rpc-ensure'."
  (let* ((generation (cl-incf gptel-retention-rpc--generation))
         (name (format "gptel-retention-%d" generation))
         (connection (condition-case err
                         (gptel-retention-rpc--connection name)
                       (error (gptel-retention-rpc--kill-buffers name)
                              (signal (car err) (cdr err)))))
         (process (jsonrpc--process connection))
         (server (make-gptel-retention-rpc--server
                  :connection connection :process process
                  :generation generation :started (float-time))))
    (add-function :around (process-filter process)
                  (lambda (inner &rest args)
                    (apply (gptel-retention-rpc--quiet inner) args)))
    (add-function :around (process-sentinel process)
                  (lambda (inner &rest args)
                    (apply (gptel-retention-rpc--quiet inner) args)))
    (setq gptel-retention-rpc--server server)
    (gptel-retention-rpc--transmit
     server "initialize"
     (list :protocol gptel-retention-rpc-protocol
           :client (format "Emacs %s" emacs-version)
           :handover (gptel-retention-rpc-directory))
     (lambda (result) (gptel-retention-rpc--greet server result))
     (lambda (problem)
       (setf (gptel-retention-rpc--server-problem server) problem)))
    server))

(defun gptel-retention-rpc--greet (server result)
  "Note what SERVER said of itself in RESULT, if we speak its protocol."
  (let ((protocol (and (listp result) (plist-get result :protocol))))
    (if (eql protocol gptel-retention-rpc-protocol)
        (setf (gptel-retention-rpc--server-ready server) result
              gptel-retention-rpc--reported nil)
      (setf (gptel-retention-rpc--server-problem server)
            (list 'gptel-retention-protocol-error
                  (format "it speaks protocol %s, this adapter %s; %s"
                          (or protocol "unknown")
                          gptel-retention-rpc-protocol
                          "update the older of the two"))))))

(defun gptel-retention-rpc--fail (server)
  "Stop SERVER and leave the backend alone for a while.
The pause doubles with each failure in a row."
  (when (eq server gptel-retention-rpc--server)
    (setq gptel-retention-rpc--server nil)
    (gptel-retention-rpc--pause))
  (when (and server
             (process-live-p (gptel-retention-rpc--server-process server)))
    (delete-process (gptel-retention-rpc--server-process server))))

(defun gptel-retention-rpc--pause ()
  "Leave the backend alone for a while."
  (setq gptel-retention-rpc--pause-end
        (+ (float-time)
           (min gptel-retention-rpc--longest-pause
                (* gptel-retention-rpc--shortest-pause
                   (expt 2 (min 10 gptel-retention-rpc--failures))))))
  (cl-incf gptel-retention-rpc--failures))

(defun gptel-retention-rpc-retry ()
  "Forget failures; the next request may try the backend at once."
  (setq gptel-retention-rpc--failures 0
        gptel-retention-rpc--pause-end 0
        gptel-retention-rpc--reported nil))

;;;###autoload
(defun gptel-retention-rpc-ensure (&optional nowait)
  "Make the backend run and return the number of its run.
Wait until it has said what it is, at most
`gptel-retention-start-timeout' seconds from its start.  With NOWAIT,
only start it.  Signal an error of the `gptel-retention-error' family if
it cannot be had or is left alone after a failure."
  (unless (gptel-retention-rpc--live-p)
    (let ((pause (- gptel-retention-rpc--pause-end (float-time))))
      (when (> pause 0)
        (signal 'gptel-retention-unavailable
                (list (format "not tried again for %d s" (ceiling pause))))))
    (gptel-retention-rpc--try-start))
  (unless nowait
    (gptel-retention-rpc--await-ready gptel-retention-rpc--server))
  (gptel-retention-rpc-generation))

(defun gptel-retention-rpc--try-start ()
  "Start the backend, or pause and signal `gptel-retention-unavailable'."
  (condition-case err
      (gptel-retention-rpc--start)
    (gptel-retention-error
     (gptel-retention-rpc--fail gptel-retention-rpc--server)
     (signal (car err) (cdr err)))
    (error
     (gptel-retention-rpc--pause)
     (signal 'gptel-retention-unavailable
             (list (error-message-string err))))))

(defun gptel-retention-rpc--await-ready (server)
  "Wait until SERVER is ready, or stop it and signal why it is not."
  (let ((end (+ (gptel-retention-rpc--server-started server)
                gptel-retention-start-timeout)))
    (gptel-retention-rpc--wait
     server end
     (lambda () (or (gptel-retention-rpc--server-ready server)
                    (gptel-retention-rpc--server-problem server))))
    (cond
     ((gptel-retention-rpc--server-ready server))
     ((gptel-retention-rpc--server-problem server)
      (gptel-retention-rpc--fail server)
      (let ((problem (gptel-retention-rpc--server-problem server)))
        (signal (car problem) (cdr problem))))
     ((not (process-live-p (gptel-retention-rpc--server-process server)))
      (gptel-retention-rpc--fail server)
      (signal 'gptel-retention-unavailable '("it ended while starting")))
     (t
      ;; Within another wait there may have been less time than this.
      (when (>= (float-time) end)
        (gptel-retention-rpc--fail server))
      (signal 'gptel-retention-timeout '("while starting"))))))

(defun gptel-retention-rpc-shutdown ()
  "Stop the backend: ask it to end, then end it."
  (let ((server gptel-retention-rpc--server))
    (setq gptel-retention-rpc--server nil)
    (when (and server
               (process-live-p (gptel-retention-rpc--server-process server)))
      (ignore-errors
        (gptel-retention-rpc--transmit server "shutdown" nil #'ignore #'ignore)
        (gptel-retention-rpc--wait server (+ (float-time) 0.5) #'ignore))
      (delete-process (gptel-retention-rpc--server-process server))))
  (gptel-retention-rpc--remove-directory))

(add-hook 'kill-emacs-hook #'gptel-retention-rpc-shutdown)

;;; Requests

(defconst gptel-retention-rpc--frame-limit (* 16 1024)
  "Bytes of one frame at most.
A pipe takes 64 KB before a reader has to come, so several unread frames
do not block Emacs; a backend that does not read is noticed before.")

(defun gptel-retention-rpc--time-left (&optional seconds)
  "Return the deadline SECONDS from now, or that of an enclosing wait.
The value is a time in seconds since the epoch, the earlier of the two."
  (let ((own (+ (float-time) (or seconds gptel-retention-timeout))))
    (if gptel-retention-rpc--deadline
        (min own gptel-retention-rpc--deadline)
      own)))

(defmacro gptel-retention-rpc-with-deadline (seconds &rest body)
  "Run BODY, whose requests share a deadline SECONDS from now."
  (declare (indent 1) (debug t))
  `(let ((gptel-retention-rpc--deadline
          (gptel-retention-rpc--time-left ,seconds)))
     ,@body))

(defun gptel-retention-rpc--wait (server end done)
  "Wait for function DONE to return non-nil, SERVER to end or END to come.
END is a time in seconds since the epoch.  Sentinels, timers and other
waits run meanwhile; an enclosing wait's deadline holds as well."
  (let* ((process (gptel-retention-rpc--server-process server))
         (end (min end (or gptel-retention-rpc--deadline end)))
         (gptel-retention-rpc--deadline end))
    (while (and (not (funcall done))
                (process-live-p process)
                (< (float-time) end))
      (accept-process-output process 0.05 nil t))
    ;; The answer may have been read and wait for its timer still.
    (unless (funcall done)
      (accept-process-output process 0.001 nil t))))

(defun gptel-retention-rpc--transmit (server method params success failure)
  "Send METHOD with PARAMS to SERVER without waiting for the answer.
SUCCESS is called with the result, or FAILURE with (SYMBOL . DATA) of an
error.  Signal an error if it cannot be sent."
  (condition-case err
      (with-timeout ((max 0.1 (- (gptel-retention-rpc--time-left)
                                 (float-time)))
                     (gptel-retention-rpc--fail server)
                     (signal 'gptel-retention-timeout '("it does not read")))
        (jsonrpc-async-request
         (gptel-retention-rpc--server-connection server)
         method (or params (make-hash-table))
         :timeout nil
         :success-fn success
         :error-fn (lambda (problem)
                     (funcall failure
                              (gptel-retention-rpc--problem problem)))))
    (gptel-retention-error (signal (car err) (cdr err)))
    (error
     (if (eq 'run (process-status (gptel-retention-rpc--server-process server)))
         (signal 'gptel-retention-protocol-error
                 (list (error-message-string err)))
       ;; It ended, or something stopped it: Emacs refuses to send.
       (gptel-retention-rpc--fail server)
       (signal 'gptel-retention-unavailable
               (list (error-message-string err)))))))

(defun gptel-retention-rpc--problem (problem)
  "Return (SYMBOL . DATA) for PROBLEM, an error object of jsonrpc.el."
  (let ((code (plist-get problem :code))
        (text (plist-get problem :message))
        (data (plist-get problem :data)))
    (cond
     ;; What jsonrpc.el says itself when the process ends.
     ((and (eql code -1) (null data))
      (list 'gptel-retention-unavailable "it ended"))
     (t
      (list 'gptel-retention-server-error
            (or (and (consp data) (stringp (plist-get data :code))
                     (plist-get data :code))
                (format "%s" code))
            (format "%s" text))))))

;;;###autoload
(defun gptel-retention-rpc-call (method params &optional timeout)
  "Ask the backend METHOD with PARAMS and return its result, a plist.
PARAMS is a plist; its large texts are handed over in files.  Wait at
most TIMEOUT seconds (default `gptel-retention-timeout'); if the backend
has to start first, that takes its own time.  Signal
`gptel-retention-timeout', `gptel-retention-unavailable',
`gptel-retention-protocol-error', or `gptel-retention-server-error' with
the data (CODE MESSAGE), CODE being the backend's stable code."
  (gptel-retention-rpc-ensure)
  (let* ((server gptel-retention-rpc--server)
         (allowance (or timeout gptel-retention-timeout))
         (started (float-time))
         (params (gptel-retention-rpc--fit params))
         (answer nil))
    (unwind-protect
        (progn
          (gptel-retention-rpc--transmit
           server method params
           (lambda (result) (setq answer (cons 'result result)))
           (lambda (problem) (setq answer (cons 'problem problem))))
          (gptel-retention-rpc--wait
           server (+ started allowance) (lambda () answer))
          (pcase answer
            (`(result . ,result)
             (setq gptel-retention-rpc--failures 0)
             result)
            (`(problem . ,problem)
             (when (eq (car problem) 'gptel-retention-unavailable)
               (gptel-retention-rpc--fail server))
             (signal (car problem) (cdr problem)))
            (_ (gptel-retention-rpc--unanswered server started allowance))))
      (gptel-retention-rpc--remove-files params))))

(defun gptel-retention-rpc--unanswered (server started allowance)
  "Signal that SERVER did not answer, and stop it if it is to blame.
STARTED is when the request was sent, ALLOWANCE the seconds it had; an
enclosing deadline may have cut the wait short, which proves nothing."
  (cond
   ((not (process-live-p (gptel-retention-rpc--server-process server)))
    (gptel-retention-rpc--fail server)
    (signal 'gptel-retention-unavailable '("it ended")))
   (t
    (when (>= (- (float-time) started) (* 0.95 allowance))
      (gptel-retention-rpc--fail server))
    (signal 'gptel-retention-timeout
            (list (format "%.1f s" (- (float-time) started)))))))

;;;###autoload
(defun gptel-retention-rpc-send (method params &optional callback)
  "Send METHOD with PARAMS to the backend and do not wait for the answer.
Return non-nil if it was sent; without a ready backend nothing is sent.
CALLBACK is called later with the result and nil, or with nil and the
error as (SYMBOL . DATA).  Without CALLBACK an error is told once."
  (if (not (gptel-retention-rpc-ready-p))
      (gptel-retention-rpc--remove-files params)
    (let* ((params (gptel-retention-rpc--fit params))
           (callback (or callback
                         (lambda (_result problem)
                           (when problem
                             (gptel-retention-rpc-report-error
                              problem method)))))
           (finish (lambda (result problem)
                     (gptel-retention-rpc--remove-files params)
                     (gptel-retention-rpc-demote method
                       (funcall callback result problem)))))
      (condition-case err
          (progn
            (gptel-retention-rpc--transmit
             gptel-retention-rpc--server method params
             (lambda (result) (funcall finish result nil))
             (lambda (problem) (funcall finish nil problem)))
            t)
        (gptel-retention-error
         (gptel-retention-rpc--remove-files params)
         (signal (car err) (cdr err)))))))

;;; Texts and hand-over files

(defconst gptel-retention-rpc--inline-limit (* 12 1024)
  "Bytes of one text inside a frame at most.")

(defconst gptel-retention-rpc--texts
  '(:tail :head :span :prompt :whole :before :body :sections :reminders)
  "Parameters that may be handed over in a file.")

(defvar gptel-retention-rpc--directory nil
  "Private directory for hand-over files, or nil before it is made.")
(defvar gptel-retention-rpc--file-number 0
  "Number of the last hand-over file.")

(defun gptel-retention-rpc-text (text)
  "Return what carries TEXT in the parameters of a request.
TEXT is a multibyte string, or a unibyte one of any bytes.  The value is
a string, or (:file :bytes :sha256) if TEXT is large or not UTF-8."
  (let* ((bytes (gptel-retention-rpc--bytes text))
         (string (and (<= (length bytes) gptel-retention-rpc--inline-limit)
                      (decode-coding-string bytes 'utf-8-unix t))))
    (if (and string (gptel-retention-rpc--unicode-p string))
        string
      (gptel-retention-rpc--hand-over bytes))))

(defun gptel-retention-rpc--unicode-p (string)
  "Return non-nil if JSON can carry the characters of STRING."
  (not (string-match-p "[^\x0-\uD7FF\uE000-\x10FFFF]" string)))

(defun gptel-retention-rpc--bytes (text)
  "Return TEXT as a unibyte string in UTF-8."
  (if (multibyte-string-p text)
      (encode-coding-string text 'utf-8-unix t)
    text))

(defun gptel-retention-rpc-clean-string (string)
  "Return STRING with each character that JSON cannot carry replaced.
These are raw bytes and lone surrogates; both become U+FFFD."
  (let ((string (if (multibyte-string-p string)
                    string
                  (decode-coding-string string 'utf-8-unix t))))
    (if (string-match-p "[\uD800-\uDFFF\x3FFF80-\x3FFFFF]" string)
        (replace-regexp-in-string "[\uD800-\uDFFF\x3FFF80-\x3FFFFF]" "\uFFFD"
                                  string t t)
      string)))

(defun gptel-retention-rpc--encode (value)
  "Return VALUE as JSON by the rules of jsonrpc.el, in UTF-8 bytes."
  (gptel-retention-rpc--bytes
   (json-serialize value :false-object :json-false :null-object nil)))

(defun gptel-retention-rpc--fit (params)
  "Return PARAMS with the largest texts handed over until they fit a frame.
Signal `gptel-retention-protocol-error' if they cannot be made to fit."
  (let ((params (copy-sequence params))
        (limit (- gptel-retention-rpc--frame-limit 200)) ; 200: the envelope
        largest)
    (while (and params
                (> (length (gptel-retention-rpc--encode params)) limit)
                (setq largest (gptel-retention-rpc--largest params)))
      (let ((value (plist-get params largest)))
        (setq params
              (plist-put params largest
                         (gptel-retention-rpc--hand-over
                          (if (stringp value)
                              (gptel-retention-rpc--bytes value)
                            (gptel-retention-rpc--encode value)))))))
    (when (and params
               (> (length (gptel-retention-rpc--encode params)) limit))
      (gptel-retention-rpc--remove-files params)
      (signal 'gptel-retention-protocol-error '("request too large")))
    params))

(defun gptel-retention-rpc--largest (params)
  "Return the key in PARAMS of the largest text that is still inline, or nil."
  (let ((size 256) largest)             ; a file's name takes about as much
    (dolist (key gptel-retention-rpc--texts largest)
      (let* ((value (plist-get params key))
             (length (cond ((stringp value) (string-bytes value))
                           ((vectorp value)
                            (length (gptel-retention-rpc--encode value)))
                           (t 0))))
        (when (> length size)
          (setq size length
                largest key))))))

(defun gptel-retention-rpc--hand-over (bytes)
  "Write BYTES, a unibyte string, to a private file and return its plist."
  (let ((file (expand-file-name
               (format "gptel-retention-c%d-%d.json" (emacs-pid)
                       (cl-incf gptel-retention-rpc--file-number))
               (gptel-retention-rpc-directory)))
        (file-name-handler-alist nil)
        (coding-system-for-write 'binary)
        (write-region-annotate-functions nil)
        (write-region-post-annotation-function nil)
        (write-region-inhibit-fsync t))
    (with-file-modes #o600
      (write-region bytes nil file nil 'silent nil 'excl))
    (list :file file
          :bytes (length bytes)
          :sha256 (secure-hash 'sha256 bytes))))

(defun gptel-retention-rpc--remove-files (params)
  "Remove hand-over files named in PARAMS that nobody has read."
  (cl-loop for (_key value) on params by #'cddr
           when (and (consp value) (stringp (plist-get value :file)))
           do (ignore-errors (delete-file (plist-get value :file)))))

(defun gptel-retention-rpc-read-text (value)
  "Return the text that VALUE carries, a multibyte string.
VALUE is a text of an answer: a string, or (:file :bytes :sha256).  A
file is checked and removed; if it is not what VALUE says, signal
`gptel-retention-protocol-error'."
  (if (stringp value)
      value
    (let ((file (plist-get value :file))
          (file-name-handler-alist nil))
      (unless (and (stringp file)
                   (equal (file-name-directory file)
                          (gptel-retention-rpc-directory))
                   (file-regular-p file)
                   (not (file-symlink-p file)))
        (signal 'gptel-retention-protocol-error
                '("not a hand-over file of ours")))
      (unwind-protect
          (gptel-retention-rpc--read-file file value)
        (delete-file file)))))

(defun gptel-retention-rpc--read-file (file value)
  "Return the text in FILE after checking it against VALUE."
  (with-temp-buffer
    (set-buffer-multibyte nil)
    (insert-file-contents-literally file)
    (let ((digest (plist-get value :sha256)))
      (unless (and (eql (buffer-size) (plist-get value :bytes))
                   (or (member digest '(nil ""))
                       (equal digest (secure-hash 'sha256
                                                  (current-buffer)))))
        (signal 'gptel-retention-protocol-error
                '("a handed-over file is not what was announced"))))
    (decode-coding-string (buffer-string) 'utf-8-unix t)))

(defun gptel-retention-rpc-directory ()
  "Return the private directory for hand-over files, and make it if needed.
Stale ones, left by an Emacs that was killed, are removed when it is
made."
  (let ((file-name-handler-alist nil))
    (unless gptel-retention-rpc--directory
      (let ((parent (gptel-retention-rpc--directory-parent)))
        (gptel-retention-rpc--sweep parent)
        (setq gptel-retention-rpc--directory
              (file-name-as-directory
               (make-temp-file
                (expand-file-name
                 (format "gptel-retention-%d-%d-" (user-uid) (emacs-pid))
                 parent)
                t)))))
    ;; Somebody may clean up below us.
    (unless (file-directory-p gptel-retention-rpc--directory)
      (with-file-modes #o700
        (make-directory gptel-retention-rpc--directory)))
    gptel-retention-rpc--directory))

(defun gptel-retention-rpc--directory-parent ()
  "Return a directory for temporary files, in memory if there is one."
  (or (cl-find-if (lambda (directory)
                    (and directory
                         (file-name-absolute-p directory)
                         (file-directory-p directory)
                         (file-writable-p directory)))
                  (list (getenv "XDG_RUNTIME_DIR") "/dev/shm"))
      (expand-file-name temporary-file-directory)))

(defun gptel-retention-rpc--sweep (parent)
  "Remove hand-over directories in PARENT whose Emacs is gone.
A directory that was used within the last ten minutes stays: its Emacs
may be one whose process this one cannot see."
  (dolist (directory
           (directory-files
            parent t (format "\\`gptel-retention-%d-[0-9]+-" (user-uid)) t))
    (let ((attributes (file-attributes directory))
          (pid (and (string-match "-\\([0-9]+\\)-[^-]*\\'" directory)
                    (string-to-number (match-string 1 directory)))))
      (when (and attributes pid
                 (eq t (file-attribute-type attributes)) ; not a link
                 (eql (user-uid) (file-attribute-user-id attributes))
                 (null (process-attributes pid))
                 (> (- (float-time)
                       (float-time
                        (file-attribute-modification-time attributes)))
                    600))
        (ignore-errors (delete-directory directory t))))))

(defun gptel-retention-rpc--remove-directory ()
  "Remove the directory for hand-over files with all that is in it."
  (when-let* ((directory gptel-retention-rpc--directory))
    (setq gptel-retention-rpc--directory nil)
    (ignore-errors (delete-directory directory t))))

(provide 'gptel-retention-rpc)
;;; gptel-retention-rpc.el ends here
